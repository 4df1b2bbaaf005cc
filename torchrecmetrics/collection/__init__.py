"""Many metrics on one ranking, and other sums of their row values: by group, of recent rows, row by row."""
