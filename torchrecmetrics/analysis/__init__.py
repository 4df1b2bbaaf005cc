"""Statistics of per-row values: confidence intervals, resampling, comparisons of runs, plots."""
