"""File formats of the field: one reader and one writer each."""
