"""Rankings, row values and results, which all packages share; knows no metric."""
