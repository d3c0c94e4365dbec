"""Benchmarks: each prints a table with the hardware it ran on, and can write its figures as JSON."""
