"""`gpuplane top`: the cluster's GPUs in a terminal, those that need a person first."""
