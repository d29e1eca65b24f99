"""gpuplane on simulated machines: `gpuplane up`, `down` and `demo`, and light nodes."""
