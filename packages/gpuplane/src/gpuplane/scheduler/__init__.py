"""The scheduler extender: kube-scheduler asks it where pods with GPUs fit, and lets it bind them.

See docs/components/scheduler.md. `component` runs it. `configuration`, which an embedded cluster reads, imports nothing
of it.
"""
