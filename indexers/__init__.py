"""Everything on disk that is searched: passages, embeddings, FAISS and Lucene indexes; and the
planner.
"""
