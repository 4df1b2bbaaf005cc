"""Inputs make rankings: one class per kind of data; targets, exclusions, and questions about odd data."""
