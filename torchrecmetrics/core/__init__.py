"""Rankings, row values and results, and helpers of all packages; knows no metric."""
