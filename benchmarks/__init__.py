"""Speed and memory beside bare PyTorch and beside other packages: `python -m benchmarks --help`."""
