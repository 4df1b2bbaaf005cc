"""Interactions of users and items: ids, files, frames, events, and their faults."""
