"""Base classes of all metrics: formula, options, summed state, values per row."""
