"""Inputs make rankings: one class per kind of data; targets and exclusions."""
