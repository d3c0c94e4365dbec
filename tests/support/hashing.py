"""Bytes by which builds are compared, and an encoder whose vectors are hashes of its texts."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32


class HashEncoder:
    """Deterministic, and slow enough that a kill can fall between two of its calls."""

    dim = 16
    identity = EncoderIdentity("hash", "c0ffee", dim=16)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        time.sleep(0.01)
        digests = [
            hashlib.sha512(f"{title}{text}".encode()).digest()
            for title, text in zip(titles, texts, strict=True)
        ]
        words = np.frombuffer(b"".join(digests), np.uint32).reshape(-1, 16)
        return words.astype(np.float32) / 2**31 - 1


def content(place: Path) -> dict[str, str]:
    """The sha256 of every file of a folder, but not of its lock."""
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
