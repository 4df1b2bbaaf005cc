"""Statistics of rows and sums: intervals, resampling, comparisons."""
