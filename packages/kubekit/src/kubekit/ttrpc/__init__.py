"""ttrpc over the multiplexed unix sockets of the Node Resource Interface.

`frames` is what goes over the wire (pure), `connection` calls and answers on it.
"""
