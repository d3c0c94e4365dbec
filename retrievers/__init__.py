"""Retrieval, question → hits: encoders, dense, sparse and hybrid search. Importing it loads nothing
heavy.
"""
