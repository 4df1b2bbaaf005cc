"""Interactions of users and items: ids, files, frames, events, and audits of data sets."""
