"""Users and items: `Interactions`, `Log`, `Catalogue`, `Groups`, and audits of them."""
