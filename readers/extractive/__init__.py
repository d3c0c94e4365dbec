"""Extractive readers: the answer is a span of a passage."""
