"""`make test-gpu`: gpuplane on a machine with a real GPU, in ten minutes, with a report.

Nothing is needed but the GPU, its driver and this checkout's Python environment. Programs run under shares as a user
starts them, by `gpuplane share run`. `--simulate MODEL` runs the same on a simulated GPU, which tests this harness and
says nothing about hardware.
"""
