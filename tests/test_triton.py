"""The Triton kernels without a GPU: run by the interpreter, compiled for each kind of card, told to fake tensors."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")

from torchrecmetrics.kernels import Question  # noqa: E402
from torchrecmetrics.kernels import triton as kernels  # noqa: E402

# compute capability: bytes of shared memory that one program can have
CARDS = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}
KINDS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["interpreted.py", "gpu"])
def test_in_the_interpreter(what):
    """What is only for it, and of what is for a card all that can run there: a card should not find mistakes first.

    A process of its own, for the variable must not reach the other tests.
    """
    here = Path(__file__).parent
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(here / what)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=here.parent, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


# ---------------------------------------------------------------------------------------------------- compiled, not run


class Build(NamedTuple):
    """One kernel as a card would run it."""

    name: str
    registers: int
    stack: int  # bytes of what did not fit into registers, and of arrays
    shared: int
    multiply: frozenset  # tensor-core instructions, without the items a tile
    keeps_nan: bool  # takes maxima that are NaN where a number is


def build(card, kernel, types, constants, warps=4, stages=3):
    """Compile one kernel with Triton and ptxas."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    whole = dict.fromkeys(kernel.arg_names, "i32") | types
    signature = {name: "constexpr" if name in constants else whole[name] for name in kernel.arg_names}
    # torch allocates on 512 bytes; rows of scores and embeddings that are multiples of 16 get the widest loads
    aligned = [
        name
        for name, kind in signature.items()
        if kind[0] == "*" or name in ("row_step", "user_row_step", "item_row_step")
    ]
    source = ASTSource(
        kernel,
        signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": kernels._FUSED}
    made = triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)
    return made


def usage(made, folder, name):
    """Ask what the compiled kernel uses."""
    binary = Path(folder) / f"{name}.cubin"
    binary.write_bytes(made.asm["cubin"])
    tool = Path(inspect.getfile(triton)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run([tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{word}:(\d+)", said)[1]) for word in ("REG", "STACK"))
    found = re.findall(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)\S*", made.asm["ptx"])
    multiply = frozenset(re.sub(r"(m64)n\d+", r"\1", word) for word in found)
    keeps_nan = "max.NaN.f32" in made.asm["ptx"]
    return Build(name, registers, stack, made.metadata.shared, multiply, keeps_nan)


def build_scores(card, kind, edges):
    """The kernel that counts scores in memory, masks included."""
    working = "fp64" if kind == "fp64" else "fp32"
    types = {
        "scores": f"*{kind}",
        "masks": "*u8",
        "matrix": "*u8",
        "edges": f"*{working}",
        "highest_out": f"*{working}",
    }
    types |= dict.fromkeys(("above_out", "at_least_out", "reaching_out", "same_out"), "*i64")
    direct, lanes, options = kernels._way(edges)
    constants = {"step": 1, "mask_step": 1, "matrix_step": 1, "MASKED": edges % 2 == 0, "MATRIX": edges % 2 == 0}
    kernel = kernels._by_comparing if direct else kernels._by_buckets
    return build(card, kernel, types, constants | options | {"LANES": lanes}, 4 if direct else 8)


def build_products(card, kind, precision, width, columns):
    """A kernel of products; columns 0 is the one of pairs."""
    types = dict.fromkeys(("users", "items"), f"*{kind}") | dict.fromkeys(("bias", "edges", "out"), "*fp32")
    types |= dict.fromkeys(("order", "asked", "above_out", "at_least_out", "ids"), "*i64")
    cut = kernels._cut((KINDS[kind],) * 2, precision, width, columns, divmod(card, 10))
    constants = {"user_step": 1, "item_step": 1, "OPERAND": kernels._TYPES[cut.operand], "PRECISION": cut.precision}
    constants |= {"BIASED": True, "D": width, "M": cut.rows, "K": cut.entries}
    if columns:
        constants |= {"N": cut.items, "COLUMNS": columns}
    kernel = kernels._by_products if columns else kernels._diagonal
    return build(card, kernel, types, constants, cut.warps, cut.stages)


SCORES = [("fp32", 1), ("fp64", 2), ("bf16", 32), ("fp32", 33), ("fp32", 1024)]
PRODUCTS = [("bf16", "highest", 128), ("bf16", "highest", 200)]
PRODUCTS += [("fp32", "high", 128), ("fp32", "high", 300), ("fp32", "highest", 128)]


@pytest.mark.parametrize("card", CARDS)
def test_compiled_for_a_card(card, tmp_path):
    """Nothing spills and the shared memory is there; tensor cores wherever float32 need not be exact."""
    from triton.compiler import ASTSource

    if "constexprs" not in inspect.signature(ASTSource).parameters:
        pytest.skip(f"Triton {triton.__version__} is compiled for another card in another way")
    for kind, edges in SCORES:
        made = usage(build_scores(card, kind, edges), tmp_path, f"{card}-{kind}-{edges}")
        assert made.stack == 0, made
        assert made.shared <= CARDS[card], made
        # the instruction that carries NaN along, which the interpreter does of itself; there is none for float64
        assert made.keeps_nan is (kind != "fp64"), made
    for what in PRODUCTS:
        name = "-".join(map(str, (card, *what)))
        some = [
            usage(build_products(card, *what, columns), tmp_path, f"{name}-{columns}")
            for columns in (0, 1, kernels._COLUMNS)
        ]
        for made in some:
            assert made.stack == 0, made
            assert made.shared <= CARDS[card], made
            assert len(made.multiply) == (what[:2] != ("fp32", "highest")), made
            assert made.multiply == some[0].multiply, "pairs and tiles are made by the same instructions"


@pytest.mark.parametrize("card", [*CARDS, 75, 100, 103, 121])
def test_what_decides_over_bits(card):
    """Pairs and tiles multiply the same numbers in the same parts, whatever the width."""
    for width in (*range(1, 140), 255, 256, 257, 512, 700, 1024):
        for types in ((torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.float16, torch.float32)):
            for precision in ("highest", "high", "medium"):
                cuts = [kernels._cut(types, precision, width, columns, divmod(card, 10)) for columns in (0, 1, 8)]
                assert len({(cut.entries, cut.operand, cut.precision) for cut in cuts}) == 1
                assert cuts[0].entries >= 16
                assert cuts[0].entries % 16 == 0


# ------------------------------------------------------------------------------------------------------ where this runs


def test_where_it_runs(monkeypatch):
    """CUDA from compute capability 8.0 on."""
    assert "cpu" in kernels.unavailable(torch.device("cpu"))
    assert "mps" in kernels.unavailable(torch.device("mps"))
    for capability, runs in (((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        reason = kernels.unavailable(torch.device("cuda", 0))
        assert (reason is None) is runs
        assert runs or "8.0" in reason
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "ROCm" in kernels.unavailable(torch.device("cuda", 0))


def test_precision_follows_pytorch():
    """The setting for all devices, and the one for CUDA alone where PyTorch has it."""
    before = torch.get_float32_matmul_precision()
    try:
        for name in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(name)
            assert kernels._float32_precision() == name
        torch.set_float32_matmul_precision("highest")
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            assert kernels._float32_precision() == "high"
            torch.backends.cuda.matmul.fp32_precision = "ieee"
            assert kernels._float32_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_fake_tensors():
    """Shapes and types are known without running anything."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        for dtype, working in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
            scores = torch.empty(5, 100, dtype=dtype)
            found = kernels.count(scores, Question(scores[:, :3], None, (1.0,), [scores[0] > 0], scores[:, :2]))
            assert [part.shape for part in found] == [(5, 3), (5, 3), (5, 1), (5,)]
            assert [part.dtype for part in found] == [torch.int64] * 3 + [working]
        products = kernels.Products(torch.empty(5, 8).bfloat16(), torch.empty(100, 8).bfloat16(), torch.empty(100))
        own = kernels.pair_scores(products, torch.empty(5, 3, dtype=torch.int64))
        assert (own.shape, own.dtype) == ((5, 3), torch.float32)
        found = kernels.count_products(products, Question(own, None, (1.0,), (), own))
        assert [part.shape for part in found] == [(5, 3), (5, 3), (5, 1), (5,)]


class Launches:
    """Stands for a kernel: keeps what it would have been launched with."""

    def __init__(self, kept):
        self.kept = kept

    def __getitem__(self, grid):
        return lambda *args, **options: self.kept.append((grid, args, options))


@pytest.mark.parametrize("width", [1, 20, 50])
def test_nothing_waits(width, monkeypatch):
    """On the meta device reading a value raises: up to the launches, and behind them, none is read."""
    kept = []
    for kernel in ("_by_comparing", "_by_buckets", "_by_products", "_diagonal"):
        monkeypatch.setattr(kernels, kernel, Launches(kept))
    scores, ids = torch.empty(500, 10**6, device="meta"), torch.empty(500, width, dtype=torch.int64, device="meta")
    kernels._count_scores._init_fn(scores, scores[:, :width], [scores[0] > 0, scores > 0])
    users, items = torch.empty(500, 64, device="meta"), torch.empty(10**6, 64, device="meta")
    kernels._pair_scores._init_fn(users, items, None, ids)
    kernels._count_products._init_fn(users, items, scores[0], scores[:, :width])
    assert len(kept) == 3
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(scores[0, 0])


@pytest.mark.parametrize("items", [1, 100, 10**6, 10**8, 2**31 + 5])
@pytest.mark.parametrize("tile", [64, 1024])
@pytest.mark.parametrize("others", [1, 3, 10**6])
def test_items_are_split_without_gap(items, tile, others):
    """Programs cover all items, none is idle, and no counter passes what a float32 counts."""
    each, programs = kernels._split(items, tile, others, torch.device("cpu"))
    assert (programs - 1) * each * tile < items <= programs * each * tile
    assert each * tile <= 2**23
