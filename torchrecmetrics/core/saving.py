"""Save and load objects as files that `torch.load` reads with `weights_only=True`."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from torchrecmetrics.core.checks import SCORE_DTYPES, shown

_VERSION = 1


def write(path: str | Path, type_name: str, fields: dict[str, Any]) -> None:
    """Write the fields of an object to a file, completely or not at all."""
    with atomic_path(path) as temporary:
        torch.save({"torchrecmetrics": type_name, "version": _VERSION, **fields}, temporary)


def write_text(path: str | Path, text: str) -> None:
    """Write text to a file, completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and move the complete file to `path` at the end."""
    path = Path(path).resolve()  # the target of a link is replaced, the link stays
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        yield path
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        yield temporary
        if path.exists():
            temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path, type_name: str) -> dict[str, Any]:
    """Read the fields of an object from a file that `write` wrote.

    Raises:
        ValueError: if the file was not written by `write`, is of a later version, or holds another type.
    """
    try:
        fields = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # other files raise any type of error, whose text offers weights_only=False
        raise ValueError(f"{path} was not written by {type_name}.save, or is damaged") from None
    saved_type = fields.get("torchrecmetrics") if isinstance(fields, dict) else None
    if saved_type is None:
        raise ValueError(f"{path} was not written by {type_name}.save")
    if saved_type != type_name:
        raise ValueError(f"{path} holds {saved_type}, not {type_name}: {saved_type}.load reads it")
    checked = _Fields(fields, f"{path} holds a damaged {type_name}")
    if checked["version"] > _VERSION:
        raise ValueError(f"{path} is of version {checked['version']}, later than {_VERSION}: update torchrecmetrics")
    return checked


def is_cut(offsets: Tensor, size: int) -> bool:
    """Return True if offsets [n + 1] cut `size` entries into n slices: from 0 to `size`, never descending."""
    return len(offsets) > 0 and offsets[[0, -1]].tolist() == [0, size] and not bool((offsets.diff() < 0).any())


def _is_column(value: Any, *dtypes: torch.dtype) -> bool:
    """Return True for a tensor [n] of one of the dtypes, by default int64."""
    is_vector = isinstance(value, Tensor) and value.layout == torch.strided and value.dim() == 1
    return is_vector and value.dtype in (dtypes or (torch.int64,))


_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("version", "num_items", "num_dropped"), lambda value: type(value) is int and 0 <= value < 2**63),
    **dict.fromkeys(("num_items_inferred", "unsigned"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("offsets", "items", "users", "bits"), _is_column),
    **dict.fromkeys(
        ("values", "numbers"), lambda value: value is None or _is_column(value, torch.int64, *SCORE_DTYPES)
    ),
    **dict.fromkeys(("user_ids", "item_ids"), lambda value: value is None or isinstance(value, dict)),
    "data": lambda value: _is_column(value, torch.uint8),
    "kind": lambda value: value in ("whole numbers", "text", "bytes"),
}
"""Checks of the fields of saved files by name; a name means the same in all files."""


class _Fields(dict[str, Any]):
    """The checked fields of a file; reading a missing one raises."""

    def __init__(self, fields: dict[str, Any], origin: str) -> None:
        super().__init__(fields)
        self.origin: str = origin
        for name, value in fields.items():
            if name in _CHECKS and not _CHECKS[name](value):
                raise ValueError(f"{origin}: {name} is {reprlib.repr(value)}")
            if name in ("user_ids", "item_ids", "times") and isinstance(value, dict):
                self[name] = _Fields(value, f"{origin}: {name}")
        if "data" in fields and not is_cut(self["offsets"], len(self["data"])):
            raise ValueError(f"{origin}: offsets {shown(self['offsets'])} do not cut {len(self['data'])} bytes")

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.origin}: it has no {name}")
