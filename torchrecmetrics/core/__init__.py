"""Rankings, row values and results: what all packages share; knows no metric."""
