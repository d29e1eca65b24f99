"""The protocols of kubelets and container runtimes, as messages generated from our own .proto files.

    from kubekit.protocol import deviceplugin_pb2, dra_pb2, nri_pb2, podresources_pb2, ttrpc_pb2

Programs speak to a kubelet through `kubekit.rpc`; the stubs for grpc, which costs 20 MB and 60 ms, are tinykube's.
Regenerate both with `python -m tinykube.protocol.generate` after a change to a .proto file.
"""
