"""Training of dense retrievers: one readable recipe a file."""
