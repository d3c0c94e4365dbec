"""Readers that point at a span of a passage."""
