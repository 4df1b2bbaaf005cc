"""The base of all metrics: its description, and the evaluator that adds row values up."""
