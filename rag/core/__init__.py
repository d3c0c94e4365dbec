"""Foundations without torch, faiss or transformers: types, errors, files, manifests, progress,
logging.
"""
