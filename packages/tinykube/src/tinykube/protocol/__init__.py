"""The kubelet's gRPC services, as stubs generated from the .proto files in `kubekit.protocol`.

They are here and not next to the messages, because only this kubelet is a gRPC server: grpc costs 20 MB and 60 ms.
"""
