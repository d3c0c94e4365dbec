"""Benchmarks: each prints a table with the hardware it ran on, and can write its figures as JSON.

Arguments that several benchmarks share, unless documented otherwise:
    precision: auto, fp32 or bf16.
    index: Directory written by `rag index`.
    retriever: auto, dense, bm25 or hybrid.
    sample: Questions, drawn at random.
    reader: Folder or hub name of a reader; default: the shipped one.
    split: words100 or none.
    corpus: Input of `rag index`; may be given several times.
"""
