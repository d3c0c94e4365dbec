"""Training of retrievers: one recipe per file, to be read from top to bottom."""
