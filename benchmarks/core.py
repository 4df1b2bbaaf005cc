"""Print what one update and compute of 18 metrics enters, calls and takes: `python -m benchmarks.core`.

The programme counts the functions of this package that are entered, and their files; the calls that reach the device,
on tensors without data; the parameters of `update`, and the lines of the package. `--list` names functions and calls.
Then it times batches of 256 rows beside a hand-written loop; `--no-times` leaves this out.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchrecmetrics as trm
from benchmarks.problem import CUTOFFS, NAMES
from benchmarks.report import header, run_case, text_of
from benchmarks.timing import machine
from benchmarks.workloads import DATA, METRICS, distinct, small_catalogues

PACKAGE = Path(trm.__file__).parent
COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
ROWS, ITEMS, DEPTH = 256, 3_706, 300
LIMITS = {"functions": 75, "files": 13, "parameters": 6, "scores, T = 1": 65, "scores, T = 20": 116, "ranks": 66}
"""Limits of the design: functions, files, parameters of `update`, and calls that reach the device for each form."""
PARTS = ("core", "inputs", "kernels", "metrics", "collection")


class DeviceCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that records the names of the calls that reach the device; views do not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(str(func).removeprefix("aten."))
        return func(*args, **(kwargs or {}))


def collection() -> trm.RecMetricCollection:
    """Return the 18 metrics."""
    return trm.RecMetricCollection(NAMES, k=CUTOFFS)


def batches() -> dict[str, tuple[tuple[Tensor, ...], dict[str, int]]]:
    """Return the arguments of `update` for each form of input."""
    torch.manual_seed(0)
    scores = torch.randn(ROWS, ITEMS)
    forms: dict[str, tuple[tuple[Tensor, ...], dict[str, int]]] = {
        f"scores, T = {width}": ((scores, distinct(ROWS, width, ITEMS)), {}) for width in (1, 20)
    }
    forms["ranks"] = ((distinct(ROWS, 20, DEPTH) + 1,), {"depth": DEPTH})
    return forms


def functions_entered(run: Callable[[], object]) -> list[str]:
    """Return the functions of this package that `run` enters, comprehensions not counted, as "file: name"."""
    entered: set[CodeType] = set()

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name not in COMPREHENSIONS and code.co_filename.startswith(str(PACKAGE)):
            entered.add(code)

    sys.setprofile(hook)
    try:
        run()
    finally:
        sys.setprofile(None)
    return sorted(f"{Path(code.co_filename).relative_to(PACKAGE)}: {code.co_name}" for code in entered)


def update_and_compute(arguments: tuple[Tensor, ...], options: dict[str, int]) -> list[str]:
    """Return the functions that an update and a compute enter, after a first one, which also fills caches."""
    metrics = collection()

    def run() -> None:
        metrics.update(*arguments, **options)  # type: ignore[arg-type]
        metrics.compute()

    run()
    metrics.reset()
    return functions_entered(run)


def device_calls(arguments: tuple[Tensor, ...], options: dict[str, int]) -> list[str]:
    """Return the calls of a second update that reach the device; the first makes tensors that depend on sizes alone."""
    metrics, empty = collection().to("meta"), [tensor.to("meta") for tensor in arguments]
    metrics.update(*empty, **options)  # type: ignore[arg-type]
    with DeviceCalls() as calls:
        metrics.update(*empty, **options)  # type: ignore[arg-type]
    names: list[str] = calls.names
    return names


def parameters() -> list[str]:
    """Return the named parameters of `update`."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    signature = inspect.signature(trm.RecMetricCollection.update)
    return [name for name, given in signature.parameters.items() if name != "self" and given.kind not in kinds]


def lines(part: str = "") -> int:
    """Return the number of lines of a subpackage or module, without the Triton kernels; "" = of the whole package."""
    module = PACKAGE / f"{part}.py"
    files: Iterable[Path] = [module] if part and module.is_file() else (PACKAGE / part).rglob("*.py")
    kept = [file for file in files if not part or file.name != "triton.py"]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in kept)


def main(arguments: list[str] | None = None) -> None:
    """Print the machine, the versions and the shapes, then the counts, the lines and the times."""
    parser = argparse.ArgumentParser(
        "benchmarks.core", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the functions and the calls")
    parser.add_argument("--no-times", action="store_true", help="count alone")
    parser.add_argument("--tiny", action="store_true", help="time small inputs, to try the programme")
    parser.add_argument("--rounds", type=int, help="rounds of each time; default: 5 to 30, as long as they are cheap")
    chosen = parser.parse_args(arguments)
    print(header(machine()))
    print(f"scores float32 [{ROWS}, {ITEMS}], T relevant; ranks int64 [{ROWS}, 20] to {DEPTH}; {METRICS}")
    print(f"\n{'one update and compute':24}{'functions':>12}{'files':>8}{'device calls':>15}  (limits in brackets)")
    for name, batch in batches().items():
        entered, calls = update_and_compute(*batch), device_calls(*batch)
        files = {function.partition(":")[0] for function in entered}
        functions = f"{len(entered)} ({LIMITS['functions']})"
        print(f"{name:24}{functions:>12}{len(files):>3} ({LIMITS['files']}){len(calls):>10} ({LIMITS[name]})")
        if chosen.list:
            print(*(f"  {function}" for function in entered), f"  {' '.join(calls)}", sep="\n")
    names = parameters()
    print(f"\nparameters of update: {len(names)} ({LIMITS['parameters']}): {', '.join(names)}")
    print("lines:", ", ".join(f"{part} {lines(part):,}" for part in PARTS), "(kernels without triton)")
    print(f"together {sum(map(lines, PARTS)):,}, the whole package {lines():,}")
    if chosen.no_times:
        return
    for case in small_catalogues(chosen.tiny, DATA):
        if case.name.endswith(("T = 1", "T = 20")):
            print(text_of(run_case(replace(case, contenders=case.contenders[:2]), chosen.rounds)), flush=True)


if __name__ == "__main__":
    main()
