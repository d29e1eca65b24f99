"""The kubelet's gRPC protocols, as messages and stubs generated from our own .proto files.

    from kubekit.protocol import deviceplugin_pb2, deviceplugin_pb2_grpc
    from kubekit.protocol import podresources_pb2, podresources_pb2_grpc

Nothing is imported here: the stubs' grpc costs 20 MB and 60 ms. Operands use the messages alone, and speak to a kubelet
through `kubekit.rpc`. Regenerate
with `python -m kubekit.protocol.generate` after a change to a .proto file.
"""
