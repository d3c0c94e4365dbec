"""File formats of the field, with a reader and a writer for each."""
