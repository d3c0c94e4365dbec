"""Benchmarks: each prints a table with the hardware it ran on, and can write its figures as JSON.

Several benchmarks share arguments, which each may document otherwise.

Args:
    precision: auto, fp32 or bf16.
    index: Directory written by `rag index`.
    retriever: auto, dense, bm25 or hybrid.
    sample: Questions, drawn at random.
    reader: Folder or hub name of a reader; default: the shipped one.
    split: words100 or none.
    corpus: Input of `rag index`; may be given several times.
"""
