"""Save and load objects as files that `torch.load` reads with `weights_only=True`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

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
    except Exception as error:
        raise ValueError(f"{path} was not written by {type_name}.save: {error}") from error
    saved_type = fields.get("torchrecmetrics") if isinstance(fields, dict) else None
    if saved_type is None:
        raise ValueError(f"{path} was not written by {type_name}.save")
    if saved_type != type_name:
        raise ValueError(f"{path} holds {saved_type}, not {type_name}: {saved_type}.load reads it")
    checked = _Fields(fields)
    checked.origin = f"{path} holds a damaged {type_name}"
    if checked["version"] > _VERSION:
        raise ValueError(f"{path} is of version {checked['version']}, later than {_VERSION}: update torchrecmetrics")
    return checked


class _Fields(dict[str, Any]):
    """The fields of a file, of which a missing one is an error in the file."""

    origin: str

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.origin}: it has no {name}")
