"""Names of the kinds of retrievers; light, so that a command's help can show them."""

KIND_NAMES = ("auto", "dense", "colbert", "bm25", "hybrid", "multihop")
