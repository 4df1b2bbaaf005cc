"""Save and load objects as files that `torch.load` reads with `weights_only=True`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

_VERSION = 1


def write(path: str | Path, type_name: str, fields: dict[str, Any]) -> None:
    """Write the fields of an object to a file, completely or not at all."""
    saved = {"torchrecmetrics": type_name, "version": _VERSION, **fields}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save({**saved, "checksum": _checksum(saved)}, file)


def write_text(path: str | Path, text: str) -> None:
    """Write text to a file, completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and move the complete file to `path` at the end.

    Raises:
        OSError: if the file cannot be written; the message has its path.
    """
    path = Path(path).resolve()  # the target of a link is replaced, the link stays
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    replaces = path.is_file() or not path.exists()  # a device or a pipe cannot be replaced
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.part") if replaces else path
    try:
        yield temporary
        if replaces:
            if path.exists():
                temporary.chmod(path.stat().st_mode)
            temporary.replace(path)
    except OSError as error:
        raise type(error)(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        if replaces:
            temporary.unlink(missing_ok=True)


def read(path: str | Path, type_name: str) -> Any:
    """Read the fields of an object from a file that `write` wrote.

    Raises:
        ValueError: if the file was not written by `write`, was cut short, is of a later version, or holds another type.
    """
    with Path(path).open("rb") as file:
        try:
            fields = torch.load(file, map_location="cpu", weights_only=True)
        except Exception:  # damaged files raise any type of error, whose text offers weights_only=False
            raise ValueError(f"{path} was not written by {type_name}.save, or is damaged") from None
    saved_type = fields.get("torchrecmetrics") if isinstance(fields, dict) else None
    if saved_type is None:
        raise ValueError(f"{path} was not written by {type_name}.save")
    if saved_type != type_name:
        raise ValueError(f"{path} holds {saved_type}, not {type_name}: {saved_type}.load reads it")
    if fields.pop("checksum", None) != _checksum(fields):
        raise ValueError(f"{path} holds a damaged {type_name}: its checksum differs from that of its contents")
    if fields["version"] > _VERSION:
        raise ValueError(f"{path} is of version {fields['version']}, later than {_VERSION}: update torchrecmetrics")
    return fields


def _checksum(value: Any) -> int:
    """Return a checksum of nested dicts of tensors, numbers and text."""
    if isinstance(value, dict):
        return zlib.crc32(repr([(name, _checksum(entry)) for name, entry in value.items()]).encode())
    if not isinstance(value, torch.Tensor):
        return zlib.crc32(repr(value).encode())
    content = value.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy().tobytes()
    return zlib.crc32(content, zlib.crc32(repr((value.dtype, value.shape)).encode()))
