"""Values that handlers return and leave: their types, what fits them, and how errors show them."""
