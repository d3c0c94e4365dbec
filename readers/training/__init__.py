"""Training of extractive readers."""
