"""CEL, the expression language of Kubernetes' validation rules and admission policies.

Why our own: none of the Python packages has optionals, quantities and the other types that Kubernetes adds, and the
one that is fast takes 0.7 s to import. A program is compiled once and called with its variables.
"""

from kubekit.cel.program import CelProgram
from kubekit.cel.syntax import CelSyntaxError
from kubekit.cel.values import CelError

__all__ = ["CelError", "CelProgram", "CelSyntaxError"]
