"""Columns and ids of frames and files; knows no metric."""
