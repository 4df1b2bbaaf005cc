"""Formulas share what they read of a ranking, for one cut-off and for several, and compile."""
