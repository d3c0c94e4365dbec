"""Recipes that train retriever and reader together."""
