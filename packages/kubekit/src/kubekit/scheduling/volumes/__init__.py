"""Volumes as kube-scheduler sees them: which nodes they allow, and how claims without a volume get one."""
