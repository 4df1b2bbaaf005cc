"""Beyond accuracy: what the lists hold, and whom they serve."""
