"""The Triton kernels without a GPU: run by the interpreter, compiled for each kind of GPU, traced with fake tensors."""

import ast
import inspect
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

triton = pytest.importorskip("triton", reason="Triton is not installed")

from benchmarks import card, machine_code  # noqa: E402
from torchrecmetrics.kernels import Question  # noqa: E402
from torchrecmetrics.kernels import triton as kernels  # noqa: E402

NIGHTLY = pytest.mark.nightly
CARDS = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}
"""Bytes of shared memory that one program can have, by compute capability."""

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
INTERPRETED = [HERE / "interpreted.py", *sorted(ROOT.glob("tests/gpu/test_*.py"))]


def interpret(*arguments, seconds):
    """Run a Python module in a process of its own, the only one with interpreted kernels, and return its output."""
    # numpy multiplies in the interpreter; with Nehalem's routines the last bits do not depend on a tile's shape
    env = os.environ | {"TRITON_INTERPRET": "1", "OPENBLAS_CORETYPE": "Nehalem", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_names_that_are_not_specialised():
    """Each name in `do_not_specialize` is a parameter of its kernel, which Triton does not check."""
    named = {}
    for function in ast.parse(Path(kernels.__file__).read_text()).body:
        for call in getattr(function, "decorator_list", []):
            if isinstance(call, ast.Call) and call.keywords and call.keywords[0].arg == "do_not_specialize":
                known = {argument.arg for argument in function.args.args}
                named[function.name] = {*ast.literal_eval(call.keywords[0].value)} <= known
    assert named == dict.fromkeys(["_by_comparing", "_by_buckets", "_by_products", "_diagonal"], True)


@pytest.mark.slow(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("path", "chosen"),
    [(INTERPRETED[0], "quick_cases or bias-whole"), *(pytest.param(path, "", marks=NIGHTLY) for path in INTERPRETED)],
    ids=lambda value: getattr(value, "stem", value),
)
def test_in_the_interpreter(path, chosen):
    """The kernels compute the right numbers in Triton's interpreter: a mistake is found before a card is needed."""
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-k", chosen]
    assert " passed" in interpret("pytest", *options, path, seconds=850)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["rates", "updates", "strategies", "products", *(f"launch {name}" for name in card.LAUNCHES)]
)
def test_first_minutes_on_a_card(command):
    """Each command that measures a card runs here at a tiny size without an error."""
    printed = interpret("benchmarks.card", *command.split(), "--tiny", seconds=200)
    assert '"error"' not in printed
    assert printed.count('"name"') >= {"rates": 8, "updates": 9, "strategies": 8, "products": 8}.get(command, 0)
    assert f"card {command.split()[0]} " in (ROOT / "benchmarks" / "first_contact.sh").read_text()


SCORES = [("fp32", 1), ("fp64", 2), ("bf16", 8), ("fp32", 33), ("fp32", 1024)]
PRODUCTS = [("bf16", "highest", 128), ("bf16", "highest", 200)]
PRODUCTS += [("fp32", "high", 128), ("fp32", "high", 300), ("fp32", "highest", 128)]


@pytest.fixture
def compiler():
    """Skip where this Triton has another interface for compiling for a GPU that is not present."""
    from triton.compiler import ASTSource

    if "constexprs" not in inspect.signature(ASTSource).parameters:
        pytest.skip(f"Triton {triton.__version__} is compiled for another card in another way")


def check_build(made, card):
    """Check that nothing spills, that shared memory suffices, and that atomics do not order other memory."""
    assert made.stack <= 8  # Triton 3.6 keeps one address there in one of these kernels
    assert made.shared <= CARDS[card]
    assert not re.search(r"atom\S*\.(acquire|release|acq_rel)", made.made.asm["ptx"])


def multiplies(made):
    """Return the tensor-core instructions, without the number of items per tile."""
    found = re.findall(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)\S*", made.made.asm["ptx"])
    return frozenset(re.sub(r"(m64)n\d+", r"\1", word) for word in found)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("card", "scores", "products"),
    [(90, SCORES[:1], PRODUCTS[:1]), *(pytest.param(card, SCORES, PRODUCTS, marks=NIGHTLY) for card in CARDS)],
    ids=["90-first", *map(str, CARDS)],
)
def test_compiled_for_a_card(card, scores, products):
    """Kernels fit the card's shared memory, spill nothing and use tensor cores wherever float32 need not be exact."""
    for kind, edges in scores:
        made = machine_code.over_scores(card, kind, edges, masked=edges % 2 == 0)
        check_build(made, card)
        # the maximum that returns NaN for NaN, as the interpreter's does; there is none for float64
        assert bool(re.search(r"max\.NaN\.b?f(32|16)", made.made.asm["ptx"])) is (kind != "fp64"), (kind, edges)
    for what in products:
        builds = [machine_code.over_products(card, *what, columns, biased=True) for columns in (0, 1, kernels._COLUMNS)]
        for made in builds:
            check_build(made, card)
            assert len(multiplies(made)) == (what[:2] != ("fp32", "highest")), what
            assert multiplies(made) == multiplies(builds[0]), "pairs and tiles are made by the same instructions"


# Most instructions per score that kernels may have on compute capability 9.0, by the name of the case.
BOUNDS = {
    "scores fp32, 1 threshold": 6,
    "scores bf16, 1 threshold": 7.2,
    "scores fp32, 8 thresholds": 40,
    "scores bf16, 8 thresholds": 44,
    "scores fp32, 10 thresholds": 50,
    "scores bf16, 10 thresholds": 50,
    "scores fp32, 50 thresholds": 82,
    "scores bf16, 50 thresholds": 82,
    "products bf16 of 128, 1 threshold": 6,
    "products bf16 of 64, 1 threshold": 5.5,
    "products tf32 of 64, 1 threshold": 6,
    "products bf16 of 64, 8 thresholds": 43,
}


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if number % 5 == 0 else NIGHTLY)
        for number, (name, _) in enumerate(machine_code.rows())
    ],
)
def test_instructions_a_score(name):
    """Each kernel issues at most the bound of instructions per score, so that a change that adds some fails."""
    made = dict(machine_code.rows())[name]()
    assert made.instructions() <= BOUNDS[name]


@pytest.mark.parametrize("card", [*CARDS, 75, 100, 103, 121])
def test_what_decides_over_bits(card):
    """Pairs and tiles multiply the same numbers in the same parts at every width, so that their bits are equal."""
    for width in (*range(1, 140), 255, 256, 257, 512, 700, 1024):
        for types in ((torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float16, torch.float32)):
            for precision in ("highest", "high", "medium"):
                choose = partial(kernels._tile_sizes, types, precision, width, capability=divmod(card, 10))
                sizes = [choose(columns=columns) for columns in (0, 1, 8)]
                assert len({(size.entries, size.operand, size.precision) for size in sizes}) == 1
                assert sizes[0].entries > 0
                assert sizes[0].entries % 16 == 0


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_kernels_run_on_cuda_alone(kind):
    assert kind in kernels.unavailable(torch.device(kind))


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_kernels_run_from_compute_capability_8_on(capability, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    assert (kernels.unavailable(torch.device("cuda", 0)) is None) is runs


def test_kernels_do_not_run_on_rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")

    assert "ROCm" in kernels.unavailable(torch.device("cuda", 0))


def test_many_thresholds_are_searched():
    """Up to 8 thresholds are compared and more are searched."""
    names = [kernels._choose_kernel(width)[0].__name__ for width in (0, 1, 8, 9)]
    assert names == ["_by_comparing"] * 3 + ["_by_buckets"]


def test_precision_follows_pytorch():
    """Float32 precision follows PyTorch's setting for all devices, and the one for CUDA alone where it exists."""
    before = torch.get_float32_matmul_precision()
    try:
        for name in ("medium", "high", "highest"):
            torch.set_float32_matmul_precision(name)
            assert kernels._float32_precision() == name
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            for name, precision in (("tf32", "high"), ("ieee", "highest")):
                torch.backends.cuda.matmul.fp32_precision = name
                assert kernels._float32_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_fake_tensors():
    """With fake tensors the kernels return the right shapes and dtypes without running."""
    with FakeTensorMode():
        for dtype, working in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
            scores = torch.empty(5, 100, dtype=dtype)
            found = kernels.count(scores, Question(scores[:, :3], None, (1.0,), [scores[0] > 0], scores[:, :2]))
            assert [part.shape for part in found] == [(5, 3), (5, 3), (5, 1), (5,)]
            assert [part.dtype for part in found] == [torch.float64] * 3 + [working]
        products = kernels.Products(torch.empty(5, 8).bfloat16(), torch.empty(100, 8).bfloat16(), torch.empty(100))
        own = kernels.pair_scores(products, torch.empty(5, 3, dtype=torch.int64))
        assert (own.shape, own.dtype) == ((5, 3), torch.float32)
        found = kernels.count_products(products, Question(own, None, (1.0,), (), own))
        assert [part.shape for part in found] == [(5, 3), (5, 3), (5, 1), (5,)]


class Launches:
    """A stand-in for a kernel that keeps the grid of every launch."""

    def __init__(self, grids):
        self.grids = grids

    def __getitem__(self, grid):
        return lambda *args, **options: self.grids.append(grid)


@pytest.mark.parametrize("width", [1, 20, 50])
def test_nothing_waits(width, monkeypatch):
    """No value is read before or after the launches: all runs on the device `meta`, where reading a value raises."""
    grids = []
    for kernel in ("_by_comparing", "_by_buckets", "_by_products", "_diagonal"):
        monkeypatch.setattr(kernels, kernel, Launches(grids))
    scores, ids = torch.empty(500, 10**6, device="meta"), torch.empty(500, width, dtype=torch.int64, device="meta")
    kernels._count_scores._init_fn(scores, scores[:, :width], [scores[0] > 0, scores > 0])
    users, items = torch.empty(500, 64, device="meta"), torch.empty(10**6, 64, device="meta")
    kernels._pair_scores._init_fn(users, items, None, ids)
    kernels._count_products._init_fn(users, items, scores[0], scores[:, :width])
    assert len(grids) == 3


@pytest.mark.parametrize("items", [1, 100, 10**6, 10**8, 2**31 + 5])
@pytest.mark.parametrize("tile", [64, 1024])
@pytest.mark.parametrize("others", [1, 3, 10**6])
def test_items_are_split_without_gap(items, tile, others):
    """Programs cover all items, none is idle, and none counts more items than a float32 counts exactly."""
    each, programs = kernels._split(items, tile, others, 2, torch.device("cpu"))
    assert (programs - 1) * each * tile < items <= programs * each * tile
    assert each * tile <= 2**23
