"""One result: printed, exported, kept by row, drawn, and compared with others."""
