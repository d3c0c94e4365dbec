"""Readers that word the answer themselves: sequence-to-sequence models over one or many passages."""
