"""Optional libraries: `needed` imports one or says how to install it, `frame_of` makes a frame of columns."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torchrecmetrics.core.checks import check_choice, extra

_MAKERS = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}
_NULLABLE = {  # types that hold missing entries, by the kind of a column
    "pandas": {"whole numbers": "Int64", "floats": "float64", "text": "object"},
    "polars": {"whole numbers": "Int64", "floats": "Float64", "text": "String"},
    "pyarrow": {"whole numbers": "int64", "floats": "float64", "text": "string"},
}


def frame_of(library: str, columns: dict[str, list[Any]], gaps: Mapping[str, str] | None = None) -> Any:
    """Make a frame of columns.

    Args:
        library: "pandas", "polars" or "pyarrow".
        columns: lists of entries by column name.
        gaps: kind of each column that may hold None, "whole numbers", "floats" or "text"; it fixes the column's type.

    Raises:
        ImportError: if the library is not installed.
        ValueError: for any other library.
    """
    check_choice("library", library, tuple(_MAKERS))
    try:
        module = importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"{library} is not installed: pip install {library}") from error
    types = {name: _NULLABLE[library][kind] for name, kind in (gaps or {}).items()}
    if library == "pyarrow":
        return module.table({n: module.array(c, types[n]) if n in types else c for n, c in columns.items()})
    frame = getattr(module, _MAKERS[library])(columns)
    if library == "pandas":
        return frame.astype(types)
    return frame.cast({name: getattr(module, type_) for name, type_ in types.items()})


def needed(module: str, purpose: str) -> Any:
    """Import a module of the extra `frames`.

    Raises:
        ImportError: if the module is not installed; names its purpose and the extra that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.partition('.')[0]}: {extra('frames')}") from error
