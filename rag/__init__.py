"""Open-domain question answering that retrieves: build an index, ask, train, evaluate."""
