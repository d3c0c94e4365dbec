"""Questions made from public documents by a language model, and whether they order settings."""
