"""What the other tests here do, small and on the CPU: a card should not be the first to find a mistake in a test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from torchrecmetrics.kernels import triton as kernels


@pytest.mark.skipif(kernels._INTERPRETED, reason="this is that run")
def test_on_the_cpu():
    """All that can run in Triton's interpreter; a process of its own, for the variable is read at Triton's import."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(here)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=here.parents[1], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
