"""What users write (YAML, inventories, templates) becomes the typed model. Never connects, never prints."""
