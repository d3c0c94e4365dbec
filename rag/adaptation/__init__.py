"""Adapting a reader to a corpus: questions made from its passages, kept where search and reading agree."""
