"""Adapting a retriever to a corpus: questions made from its passages, and training on them."""
