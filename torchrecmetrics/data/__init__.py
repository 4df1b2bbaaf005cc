"""Users and items: `Interactions`, `Groups`, `Catalogue` as tensors; logs and audits, which alone load tables."""
