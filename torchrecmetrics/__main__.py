"""Entry point of `python -m torchrecmetrics`, the command line."""

import sys

from torchrecmetrics.cli import main

if __name__ == "__main__":
    sys.exit(main())
