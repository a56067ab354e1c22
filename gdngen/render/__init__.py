"""`Planned` -> text of a module -> formatted -> written: what stands under `generated/`."""
