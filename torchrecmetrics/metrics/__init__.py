"""A metric: its formula, its class and name, and the sums of its row values."""
