"""CEL, the expression language of Kubernetes' validation rules and admission policies.

Why our own: none of the Python packages has optionals, quantities and the other types that Kubernetes adds, and the
one that is fast takes 0.7 s to import. A program is compiled once and called with its variables.
"""

from tinykube.apiserver.cel.program import CelProgram
from tinykube.apiserver.cel.syntax import CelSyntaxError
from tinykube.apiserver.cel.values import CelError

__all__ = ["CelError", "CelProgram", "CelSyntaxError"]
