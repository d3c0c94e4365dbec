"""Run a system over a question set, score it, compare systems, report."""
