"""The checks of `gpuplane doctor`, one in each module; `registry.py` has them in the order of their printing."""
