"""Training of retrievers: one recipe per file, `dpr.py` first."""
