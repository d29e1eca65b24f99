"""Why a pod is where it is, or why it waits: the cluster as it is (`world`), the answer, and cures that were tried."""
