"""Refreshing during training: schedule, staleness, generations, exchange between processes."""
