"""A metric: its formula and class, its name, and the sums of its row values."""
