"""Torch helpers: hardware, precision, attention, seeds, checkpoints, schedules and the one fit loop."""
