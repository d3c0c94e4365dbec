"""Passages and questions from every format: reading, splitting, normalising, writing."""
