"""Who has which items: ids, files, frames, events, and what is wrong with them."""
