"""`python -m gpuplane`: the command line without an installed script, as the image starts it."""

from gpuplane.cli.main import run

run()
