"""What an index can hold beside its passages, and the names under which it is asked for."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["INDEX_KINDS", "PARTS", "IndexKind", "Part"]

Part = Literal["dense", "bm25"]
PARTS: tuple[Part, ...] = get_args(Part)

IndexKind = Literal["dense", "bm25", "hybrid"]
INDEX_KINDS: dict[IndexKind, tuple[Part, ...]] = {
    "dense": ("dense",),
    "bm25": ("bm25",),
    "hybrid": PARTS,
}
