"""The kernels access no memory that is not theirs, and no two threads access the same memory without order."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASE = [sys.executable, str(HERE / "small_case.py")]
# no caching: an access beyond one tensor must not fall into another allocation unseen
ENV = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(HERE.parents[1])}


def run(command, seconds=800):
    return subprocess.run(command, cwd=HERE.parents[1], env=ENV, capture_output=True, text=True, timeout=seconds)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer_finds_nothing(tool, cuda):
    """compute-sanitizer finds no error in any kernel on small odd shapes."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    watch = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
    hello = run([*watch, sys.executable, "-c", "import torch; torch.ones(1, device='cuda').sum().item()"])
    if hello.returncode:
        pytest.skip(f"compute-sanitizer does not run here: {(hello.stdout + hello.stderr)[-300:]}")
    done = run([*watch, *CASE])
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "done" in done.stdout


def test_the_case_runs(place):
    """The program that the sanitizer watches runs without the sanitizer."""
    done = run(CASE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("done\n")
