"""Interactions of users and items: logs, catalogues, groups, recommendations, and audits of data sets."""
