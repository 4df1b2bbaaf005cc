"""Benchmarks of speed and memory against plain PyTorch and other packages: see `python -m benchmarks --help`."""
