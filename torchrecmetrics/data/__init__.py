"""Data of users and items: interactions, logs, catalogues, groups, and audits of them."""
