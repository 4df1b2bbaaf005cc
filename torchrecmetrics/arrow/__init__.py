"""Tallies for data engines: partial sums of metrics over a chunk of rows, as an Arrow table."""

from torchrecmetrics.core.checks import extra

try:
    import pyarrow  # noqa: F401
except ImportError as _error:
    raise ImportError(f"torchrecmetrics.arrow needs pyarrow: {extra('arrow')}") from _error

from torchrecmetrics.arrow.tallies import SCHEMA, SCHEMA_DDL, merge, tally

__all__ = ["SCHEMA", "SCHEMA_DDL", "merge", "tally"]
