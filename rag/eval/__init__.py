"""Runs a system over a question set, scores it, compares systems, reports."""
