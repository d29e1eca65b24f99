"""Schedules the pods that name it in `spec.schedulerName`: by kube-scheduler's filters, and by the extender's ledger.

See docs/components/pod-scheduler.md. It runs in the extender's process, since two ledgers would allocate a GPU twice.
"""
