"""One result: printed, exported, kept by row, drawn by `plot`, and compared by `compare`."""
