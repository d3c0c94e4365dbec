"""The parts of an index, and its FAISS types (inner product) with parameters for each corpus size.

| name | what is searched                                    | bytes per vector | for                        |
|------|-----------------------------------------------------|------------------|----------------------------|
| flat | the float32 embeddings themselves                   | 4·D              | exact, up to some millions |
| hnsw | graph (32 links per node) over 8-bit codes          | D + 272          | lowest latency, slow build |
| ivf  | inverted lists of 4-bit product codes, 32 at a time | D/4 + 8          | millions of passages       |

Any other name is read by FAISS' own `index_factory`, such as "SQ8" or "OPQ64,IVF4096,PQ64x4fs". All but
`flat` are lossy; their candidates are re-ranked with exact scores from the embeddings on disk. Files are
mapped into memory, which several processes share. Another type, `plaid`, is for encoders with one vector per
token: see `indexers.token_index`.

Source: André et al. 2017, "Accelerated Nearest Neighbor Search with Quick ADC", for the codes of `ivf`.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

# The parts that an index can have beside its passages, by the name of the retriever setting.
Part = Literal["dense", "tokens", "bm25"]
PARTS: tuple[Part, ...] = get_args(Part)

IndexKind = Literal["dense", "bm25", "hybrid"]
INDEX_KINDS: dict[IndexKind, tuple[Part, ...]] = {
    "dense": ("dense",),
    "bm25": ("bm25",),
    "hybrid": ("dense", "bm25"),
}
INDEX_TYPES = ("flat", "hnsw", "ivf")
PLAID = "plaid"  # one vector per token: the part "tokens" takes the place of "dense"

HNSW_LINKS = 32
HNSW_EF_CONSTRUCTION = 160
TWO_LEVELS_FROM = 1024  # lists, from which they are clustered in two levels
GRAPH_OF_LISTS_FROM = 4096  # lists, from which a graph finds those nearest to a vector
_LIST_POINTS = 64  # training vectors for each inverted list
_CODE_POINTS = 65_536  # training vectors for codes


@dataclass(frozen=True, slots=True)
class Preset:
    """Parameters of one index type for a corpus of a given size.

    Attributes:
        factory: FAISS factory string; empty for `flat`, which has no FAISS file.
        nlist: inverted lists; 0 where there are none, or FAISS decides.
        training_rows: vectors that codes and lists are trained on.
        over_fetch: candidates that are re-ranked for each result.
    """

    name: str
    factory: str
    nlist: int
    training_rows: int
    over_fetch: int


def preset_for(name: str, rows: int, dim: int) -> Preset:
    """The parameters of an index type for `rows` vectors of size `dim`.

    Example:
        >>> preset_for("ivf", 21_015_324, 768).factory
        'IVF16384_HNSW32,PQ384x4fsr'
        >>> preset_for("SQ8", 1000, 384).factory
        'SQ8'
    """
    if name == "flat":
        return Preset(name, "", 0, 0, 1)
    if name == "hnsw":
        return Preset(name, f"HNSW{HNSW_LINKS}_SQ8", 0, min(rows, _CODE_POINTS), 1)
    if name != "ivf":
        return Preset(name, name, 0, min(rows, 4 * _CODE_POINTS), 4)
    # 4·√N as a power of two, but at least 39 vectors per list
    nlist = max(1, min(1 << round(math.log2(4 * math.sqrt(max(rows, 1)))), rows // 39))
    graph = f"_HNSW{HNSW_LINKS}" if nlist >= GRAPH_OF_LISTS_FROM else ""
    codes = dim // 2 if dim % 2 == 0 else dim  # of four bits
    training_rows = min(rows, max(_CODE_POINTS, _LIST_POINTS * nlist))
    return Preset(name, f"IVF{nlist}{graph},PQ{codes}x4fsr", nlist, training_rows, 4)
