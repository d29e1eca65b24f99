"""A plugin's side of the Node Resource Interface of container runtimes.

`plugin` is a plugin's life with one runtime, `runtimes` says with which ones it can be. The wire is `kubekit.ttrpc`,
the messages are `kubekit.protocol.nri_pb2`.
"""
