"""Tallies for data engines: what metrics hold of some rows of an Arrow table, as a row that adds up with others."""

try:
    import pyarrow  # noqa: F401
except ImportError as _error:
    raise ImportError("torchrecmetrics.arrow needs pyarrow: pip install 'torchrecmetrics[arrow]'") from _error

from torchrecmetrics.arrow.states import SCHEMA, SCHEMA_DDL
from torchrecmetrics.arrow.tallies import merge, tally

__all__ = ["SCHEMA", "SCHEMA_DDL", "merge", "tally"]
