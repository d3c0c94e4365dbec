"""Training examples of retrievers: files, tables of token ids, batches, masks."""
