"""Readers of files and frames: columns, ids, times and their vocabularies."""
