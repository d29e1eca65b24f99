"""The command line: `gpuplane`, and `kubectl gpuplane`."""
