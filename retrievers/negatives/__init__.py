"""Hard negatives: mined from BM25, from a model, or both, filtered, with provenance."""
