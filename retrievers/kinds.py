"""Names of the kinds of retrievers; light, so that a command's help can show them."""

from __future__ import annotations

KIND_NAMES = ("auto", "dense", "colbert", "bm25", "hybrid", "multihop")
