"""The tokens by which kubelets know their API server: one a node, all from one secret of the cluster.

The address of a kubelet is what its Node says, and a thief of the node's credentials writes that. So the program that
listens there learns a token, which must open no other kubelet.
"""

from __future__ import annotations

import hmac


def kubelet_token(secret: str, node_name: str) -> str:
    """Return the token that the API server shows to the kubelet of a node; the secret does not follow from it. Pure.

    `node_name` is the `metadata.name` of the Node, the one name that a node cannot choose.
    """
    return hmac.new(secret.encode(), node_name.encode(), "sha256").hexdigest()
