"""`python -m gpuplane`: the command line without an installed script, as the image starts it."""

import sys

from gpuplane.cli.main import main

sys.exit(main())
