"""Question → hits: bi-encoders, dense, sparse and hybrid retrieval. Nothing heavy is imported here."""
