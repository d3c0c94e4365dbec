"""Question + passages → answers."""
