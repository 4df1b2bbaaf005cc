"""Metrics beyond accuracy: popularity, novelty, diversity, coverage and fairness of the recommended lists."""
