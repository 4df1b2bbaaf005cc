"""The kernels access no memory that is not theirs, and no two threads access the same memory without order."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SMALL_CASE = [sys.executable, str(HERE / "small_case.py")]


def run(command):
    # no caching: an access beyond one tensor must not fall into another allocation unseen
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(HERE.parents[1])}
    return subprocess.run(command, cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=800)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer_finds_no_error_on_small_odd_shapes(tool, cuda):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    watch = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
    hello = run([*watch, sys.executable, "-c", "import torch; torch.ones(1, device='cuda').sum().item()"])
    if hello.returncode:
        pytest.skip(f"compute-sanitizer does not run here: {(hello.stdout + hello.stderr)[-300:]}")
    watched = run([*watch, *SMALL_CASE])

    assert watched.returncode == 0, (watched.stdout + watched.stderr)[-4000:]
    assert "done" in watched.stdout


def test_the_watched_program_runs_without_the_sanitizer(place):
    alone = run(SMALL_CASE)

    assert alone.returncode == 0, alone.stderr[-2000:]
    assert alone.stdout.endswith("done\n")
