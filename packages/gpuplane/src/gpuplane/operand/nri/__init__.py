"""The Node Resource Interface of container runtimes: ttrpc over a multiplexed unix socket, and a plugin's side of it.

`frames` is what goes over the wire (pure), `connection` calls and answers on it, `plugin` is a plugin's life with one
runtime, `runtimes` says with which ones it can be. The messages are `kubekit.protocol.nri_pb2`; the runtime's side
is the simulator's.
"""
