"""PodSecurity: namespaces whose labels refuse, or warn about, pods with more rights than a level gives.

Source: kubernetes.io/docs/concepts/security/pod-security-standards, as of 1.36. There is no audit log, so the label
`audit` is validated and has no other effect.
"""

from tinykube.apiserver.pod_security.admission import PodSecurity

__all__ = ["PodSecurity"]
