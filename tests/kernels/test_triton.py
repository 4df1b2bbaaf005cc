"""The Triton kernels without a GPU: run by the interpreter, compiled for each kind of GPU, traced with fake tensors."""

import ast
import inspect
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch._subclasses import FakeTensorMode

triton = pytest.importorskip("triton", reason="Triton is not installed")

from benchmarks import card, machine_code  # noqa: E402
from torchrecmetrics.kernels import Question  # noqa: E402
from torchrecmetrics.kernels import triton as kernels  # noqa: E402

NIGHTLY = pytest.mark.nightly
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


def test_names_that_are_not_specialised_are_parameters():
    """Triton does not check the names in `do_not_specialize`."""
    known = {}
    for function in ast.parse(Path(kernels.__file__).read_text()).body:
        for call in getattr(function, "decorator_list", []):
            if isinstance(call, ast.Call) and call.keywords and call.keywords[0].arg == "do_not_specialize":
                parameters = {argument.arg for argument in function.args.args}
                known[function.name] = {*ast.literal_eval(call.keywords[0].value)} <= parameters

    assert known == dict.fromkeys(["_by_comparing", "_by_buckets", "_by_products", "_diagonal"], True)


@pytest.mark.slow(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("path", "chosen"),
    [(INTERPRETED[0], "small_case or bias-whole"), *(pytest.param(path, "", marks=NIGHTLY) for path in INTERPRETED)],
    ids=lambda value: getattr(value, "stem", value),
)
def test_kernels_are_right_in_the_interpreter(path, chosen):
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-k", chosen]
    assert " passed" in interpret("pytest", *options, path, seconds=850)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "rows"),
    [("rates", 8), ("updates", 9), ("strategies", 8), ("products", 8), *((f"launch {n}", 0) for n in card.LAUNCHES)],
)
def test_commands_for_the_first_minutes_on_a_card_run(command, rows):
    printed = interpret("benchmarks.card", *command.split(), "--tiny", seconds=200)

    assert '"error"' not in printed
    assert printed.count('"name"') >= rows
    assert f"card {command.split()[0]} " in (ROOT / "benchmarks" / "first_contact.sh").read_text()


CARDS = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}
"""Bytes of shared memory that one program can have, by compute capability."""
SCORES = [("fp32", 1), ("fp64", 2), ("bf16", 8), ("fp32", 33), ("fp32", 1024)]
PRODUCTS = [("bf16", "highest", 128), ("bf16", "highest", 200)]
PRODUCTS += [("fp32", "high", 128), ("fp32", "high", 300), ("fp32", "highest", 128)]


def on_cards(kinds):
    """Return the first kind on compute capability 9.0, and, for nightly runs, all kinds on all cards."""
    return [(90, *kinds[0]), *(pytest.param(card, *kind, marks=NIGHTLY) for card in CARDS for kind in kinds)]


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


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("card", "kind", "edges"), on_cards(SCORES))
def test_kernels_over_scores_fit_the_card(card, kind, edges):
    """The maximum returns NaN for NaN, as the interpreter's does; there is none for float64."""
    made = machine_code.over_scores(card, kind, edges, masked=edges % 2 == 0)

    check_build(made, card)
    assert bool(re.search(r"max\.NaN\.b?f(32|16)", made.made.asm["ptx"])) is (kind != "fp64")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("card", "kind", "precision", "width"), on_cards(PRODUCTS))
def test_kernels_over_products_use_the_same_tensor_cores_for_pairs_and_tiles(card, kind, precision, width):
    instructions = []
    for columns in (0, 1, kernels._COLUMNS):  # 0: pairs
        made = machine_code.over_products(card, kind, precision, width, columns, biased=True)
        check_build(made, card)
        words = re.findall(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)\S*", made.made.asm["ptx"])
        instructions.append({re.sub(r"(m64)n\d+", r"\1", word) for word in words})  # without the items of a tile

    assert len(instructions[0]) == ((kind, precision) != ("fp32", "highest"))
    assert instructions == [instructions[0]] * 3


ROWS = dict(machine_code.rows())
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
@pytest.mark.parametrize("name", [pytest.param(n, marks=NIGHTLY if at % 5 else ()) for at, n in enumerate(ROWS)])
def test_a_score_takes_few_instructions(name):
    assert ROWS[name]().instructions() <= BOUNDS[name]


@pytest.mark.parametrize("card", [*CARDS, 75, 100, 103, 121])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize(
    "dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float16, torch.float32)], ids=str
)
def test_pairs_and_tiles_multiply_the_same_numbers_in_the_same_parts(dtypes, precision, card):
    choose = partial(kernels._tile_sizes, dtypes, precision, capability=divmod(card, 10))
    widths = (*range(1, 140), 255, 256, 257, 512, 700, 1024)
    sizes = [[choose(width, columns=columns) for columns in (0, 1, 8)] for width in widths]  # columns = 0: pairs

    assert all(len({(size.entries, size.operand, size.precision) for size in each}) == 1 for each in sizes)
    assert all(size.entries in range(16, 1025, 16) for each in sizes for size in each)


@pytest.mark.parametrize(
    ("device", "hip", "named"), [("cpu", None, "cpu"), ("mps", None, "mps"), ("cuda", "6", "ROCm")]
)
def test_kernels_run_on_cuda_alone(device, hip, named, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", hip)
    assert named in kernels.unavailable(torch.device(device))


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_kernels_run_from_compute_capability_8_on(capability, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (kernels.unavailable(torch.device("cuda", 0)) is None) is runs


def test_up_to_8_thresholds_are_compared_and_more_are_searched():
    names = [kernels._choose_kernel(width)[0].__name__ for width in (0, 1, 8, 9)]
    assert names == ["_by_comparing"] * 3 + ["_by_buckets"]


SETTINGS = [(partial(torch.set_float32_matmul_precision, name), name) for name in ("medium", "high", "highest")]
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # a setting for CUDA alone
    OF_CUDA = partial(setattr, torch.backends.cuda.matmul, "fp32_precision")
    SETTINGS += [(partial(OF_CUDA, "tf32"), "high"), (partial(OF_CUDA, "ieee"), "highest")]


@pytest.fixture
def precision_is_restored():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("precision_is_restored")
@pytest.mark.parametrize(("change", "expected"), SETTINGS)
def test_precision_follows_the_settings_of_pytorch(change, expected):
    change()
    assert kernels._float32_precision() == expected


@pytest.mark.parametrize(
    ("dtype", "of_highest"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)], ids=str
)
def test_counts_of_fake_scores_have_shapes_and_dtypes(dtype, of_highest):
    with FakeTensorMode():
        scores = torch.empty(5, 100, dtype=dtype)
        counts = kernels.count(scores, Question(scores[:, :3], None, (1.0,), [scores[0] > 0], scores[:, :2]))

    assert [part.shape for part in counts] == [(5, 3), (5, 3), (5, 1), (5,)]
    assert [part.dtype for part in counts] == [torch.float64] * 3 + [of_highest]


def test_counts_of_fake_products_have_shapes():
    with FakeTensorMode():
        products = kernels.Products(torch.empty(5, 8).bfloat16(), torch.empty(100, 8).bfloat16(), torch.empty(100))
        own = kernels.pair_scores(products, torch.empty(5, 3, dtype=torch.int64))
        counts = kernels.count_products(products, Question(own, None, (1.0,), (), own))

    assert (own.shape, own.dtype) == ((5, 3), torch.float32)
    assert [part.shape for part in counts] == [(5, 3), (5, 3), (5, 1), (5,)]


@pytest.mark.parametrize("width", [1, 20, 50])
def test_launches_read_no_value(width, monkeypatch):
    """All runs on the device `meta`, where reading a value raises."""
    launched = {name: MagicMock() for name in ("_by_comparing", "_by_buckets", "_by_products", "_diagonal")}
    for name, kernel in launched.items():
        monkeypatch.setattr(kernels, name, kernel)
    scores, ids = torch.empty(500, 10**6, device="meta"), torch.empty(500, width, dtype=torch.int64, device="meta")
    users, items = torch.empty(500, 64, device="meta"), torch.empty(10**6, 64, device="meta")
    kernels._count_scores._init_fn(scores, scores[:, :width], [scores[0] > 0, scores > 0])
    kernels._pair_scores._init_fn(users, items, None, ids)
    kernels._count_products._init_fn(users, items, scores[0], scores[:, :width])

    assert sum(kernel.__getitem__.call_count for kernel in launched.values()) == 3


@pytest.mark.parametrize("items", [1, 100, 10**6, 10**8, 2**31 + 5])
@pytest.mark.parametrize("tile", [64, 1024])
@pytest.mark.parametrize("others", [1, 3, 10**6])
def test_programs_cover_all_items_and_none_is_idle(items, tile, others):
    each, programs = kernels._split(items, tile, others, 2, torch.device("cpu"))

    assert (programs - 1) * each * tile < items <= programs * each * tile
    assert each * tile <= 2**23, "more than a float32 counts exactly"
