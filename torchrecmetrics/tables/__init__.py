"""Columns and ids: readers of frames and files, `Table`, `Vocabulary`; knows no metric."""
