"""What all metrics share: formula, options, summed state, values per row."""
