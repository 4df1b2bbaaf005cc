"""Beyond accuracy: metrics of the lists themselves."""
