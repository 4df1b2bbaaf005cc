"""Many metrics on one ranking: `RecMetricCollection`, and sums by group, of recent rows, and row by row."""
