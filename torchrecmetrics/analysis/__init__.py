"""What rows and sums say beyond a mean: intervals, resampling, comparisons."""
