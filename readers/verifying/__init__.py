"""Claim + passages → verdicts."""
