"""Count the instructions of the Triton kernels, compiled without a GPU.

    python -m benchmarks.machine_code          count with the installed Triton; counts of other versions are kept
    python -m benchmarks.machine_code print    print the stored counts as the page shows them

The tools that read machine code come with Triton. The count is of instructions in the kernel's main loop that a thread
issues per score that it handles, loads and the loop itself included.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

RESULTS = Path(__file__).parent / "results" / "machine_code.json"
KINDS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
HOPPER = 90


class Build(NamedTuple):
    """One compiled kernel, as a card would run it."""

    made: Any
    """Output of Triton's compiler."""
    scores: float
    """Of each thread, in a turn of the main loop."""

    def tool(self, *options: str) -> str:
        """Return the output of Triton's cuobjdump for this kernel."""
        import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]

        binary = Path(inspect.getfile(triton)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.made.asm["cubin"])
            file.flush()
            said = subprocess.run([binary, *options, file.name], capture_output=True, text=True, check=True)
        return said.stdout

    @property
    def registers(self) -> int:
        """Registers of each thread."""
        return self._used("REG")

    @property
    def stack(self) -> int:
        """Bytes of stack per thread: values that did not fit into registers, and arrays."""
        return self._used("STACK")

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return int(self.made.metadata.shared)

    def _used(self, word: str) -> int:
        found = re.search(rf"{word}:(\d+)", self.tool("--dump-resource-usage"))
        assert found is not None
        return int(found[1])

    def lines(self) -> dict[int, str]:
        """Return the instructions by address."""
        found = re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;", self.tool("-sass"))
        return {int(at, 16): text for at, text in found}

    def instructions(self) -> float:
        """Return the instructions per score in the main loop."""
        lines = self.lines()
        first, last = min((target, at) for at, text in lines.items() if (target := _back(at, text)) is not None)
        return sum(first <= at <= last for at in lines) / self.scores


def _target(text: str) -> int | None:
    found = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
    return None if found is None else int(found[1], 16)


def _back(at: int, text: str) -> int | None:
    """Return the start of the loop that ends here, or None; a branch to itself only marks the end of the code."""
    target = _target(text)
    return target if target is not None and target < at else None


def compiled(card: int, kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, Any]) -> Any:
    """Compile one kernel with Triton and ptxas, for a compute capability such as 90."""
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton.compiler import ASTSource  # type: ignore[import-not-found,import-untyped,unused-ignore]

    whole = dict.fromkeys(kernel.arg_names, "i32") | types
    signature = {name: "constexpr" if name in constants else whole[name] for name in kernel.arg_names}
    # torch aligns memory to 512 bytes; rows whose step is a multiple of 16 get the widest loads
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
    return triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)


def over_scores(card: int, kind: str, edges: int, masked: bool = False) -> Build:
    """Build the kernel that compares scores in memory with `edges` thresholds per row."""
    from torchrecmetrics.kernels import triton as kernels

    working = "fp64" if kind == "fp64" else "fp32"
    types = {"scores": f"*{kind}", "masks": "*u8", "matrix": "*u8", "histogram_out": "*i64"}
    types |= dict.fromkeys(("edges", "highest_out"), f"*{working}")
    types |= dict.fromkeys(("above_out", "at_least_out"), "*i64")
    kernel, options = kernels._choose_kernel(edges)
    constants = {"step": 1, "mask_step": 1, "matrix_step": 1, "MASKED": masked, "MATRIX": masked, "FAR": False}
    constants |= {name: value for name, value in options.items() if name != "num_warps"}
    warps = options["num_warps"]
    made = compiled(card, kernel, types, constants, {"num_warps": warps, "enable_fp_fusion": kernels._FUSED})
    return Build(made, options["LANES"] / (32 * warps))


def over_products(card: int, kind: str, precision: str, width: int, columns: int, biased: bool = False) -> Build:
    """Build a kernel of products: the one that counts, or the one that scores pairs if `columns` is 0."""
    from torchrecmetrics.kernels import triton as kernels

    types = dict.fromkeys(("users", "items"), f"*{kind}") | dict.fromkeys(("bias", "edges", "out"), "*fp32")
    types |= dict.fromkeys(("order", "num_edges", "above_out", "at_least_out", "ids"), "*i64")
    cut = kernels._tile_sizes((KINDS[kind],) * 2, precision, width, columns, divmod(card, 10))
    constants = {"user_step": 1, "item_step": 1, "OPERAND": kernels._TYPES[cut.operand], "PRECISION": cut.precision}
    constants |= {"BIASED": biased, "D": width, "M": cut.rows, "K": cut.entries}
    if columns:
        constants |= {"N": cut.items, "COLUMNS": columns, "SHARE": cut.share}
    kernel = kernels._by_products if columns else kernels._diagonal
    options = {"num_warps": cut.warps, "num_stages": cut.stages, "enable_fp_fusion": kernels._FUSED}
    return Build(compiled(card, kernel, types, constants, options), cut.rows * cut.items / (32 * cut.warps))


def rows() -> Iterator[tuple[str, Any]]:
    """Yield the name of each row of the table, which tests hold to a bound, and the function that builds its kernel."""
    for kind in ("fp32", "bf16"):
        yield f"scores {kind}, 1 threshold", partial(over_scores, HOPPER, kind, 1)
        yield f"scores {kind}, 8 thresholds", partial(over_scores, HOPPER, kind, 8)
        for edges in (10, 50):
            yield f"scores {kind}, {edges} thresholds", partial(over_scores, HOPPER, kind, edges)
    for kind, precision, width in (("bf16", "highest", 128), ("bf16", "highest", 64), ("fp32", "high", 64)):
        label = "tf32" if kind == "fp32" else kind
        yield f"products {label} of {width}, 1 threshold", partial(over_products, HOPPER, kind, precision, width, 1)
    yield "products bf16 of 64, 8 thresholds", partial(over_products, HOPPER, "bf16", "highest", 64, 8)


def count() -> dict[str, dict[str, float]]:
    """Compile and count all kernels of `rows` with the installed Triton."""
    found = {}
    for name, build in rows():
        made = build()
        found[name] = {
            "instructions": round(made.instructions(), 2),
            "registers": made.registers,
            "shared": made.shared,
            "stack": made.stack,
        }
    return found


def markdown(counts: dict[str, Any]) -> str:
    """Write a table with a column for each version of Triton."""
    versions = sorted(counts)
    titles = [f"Triton {version}" for version in versions]
    lines = [f"| instructions a score | {' | '.join(titles)} |", f"| --- |{' ---: |' * len(titles)}"]
    for name in counts[versions[0]]:
        cells = [f"{counts[version][name]['instructions']:.2f}" for version in versions]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kept() -> dict[str, Any]:
    """Read the stored counts, by version of Triton."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def main(arguments: list[str]) -> None:
    """Count and store, or only print the stored counts."""
    counts = kept()
    if arguments != ["print"]:
        import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]

        counts[triton.__version__] = count()
        RESULTS.write_text(json.dumps(counts, indent=1) + "\n")
    print(markdown(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
