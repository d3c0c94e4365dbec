"""The parts of an index, and the named FAISS types (inner product) with parameters for each corpus size.

| name     | what is searched                           | bytes per vector | for                        |
|----------|--------------------------------------------|------------------|----------------------------|
| flat     | the float32 embeddings themselves          | 4·D              | exact, up to some millions |
| fp16     | half precision                             | 2·D              | nearly exact               |
| sq8      | 8 bits per number                          | D                | a quarter of the memory    |
| hnsw     | graph (32 links per node) over 8-bit codes | D + 272          | lowest latency, slow build |
| ivf      | inverted lists of 8-bit codes              | D + 8            | fast, millions and more    |
| fastscan | inverted lists of 4-bit product codes      | D/4 + 8          | fastest for many millions  |
| ivfpq    | inverted lists of 8-bit product codes      | ≈ D/6 + 8        | small memory               |
| rabitq   | inverted lists of 1-bit codes, rotated     | D/8 + 16         | smallest memory            |

All but `flat` are lossy; their candidates are re-ranked with exact scores from the embeddings on disk. Files
are mapped into memory, which several processes share. The codes of `fastscan` lie in blocks of 32 that the
processor compares at a time (André et al. 2017, "Accelerated Nearest Neighbor Search with Quick ADC").
Another lossy type, `plaid`, is for encoders with one vector per token: see `indexers.token_index`.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rag.core.errors import ConfigError

# The parts that an index can have beside its passages, by the name of the retriever setting.
Part = Literal["dense", "tokens", "bm25"]
PARTS: tuple[Part, ...] = get_args(Part)

IndexKind = Literal["dense", "bm25", "hybrid"]
INDEX_KINDS: dict[IndexKind, tuple[Part, ...]] = {
    "dense": ("dense",),
    "bm25": ("bm25",),
    "hybrid": ("dense", "bm25"),
}
IndexType = Literal["flat", "fp16", "sq8", "hnsw", "ivf", "fastscan", "ivfpq", "rabitq"]
INDEX_TYPES: tuple[IndexType, ...] = get_args(IndexType)
LISTED_TYPES = ("ivf", "fastscan", "ivfpq", "rabitq")  # with inverted lists, of which a search reads some
PLAID = "plaid"  # one vector per token: the part "tokens" takes the place of "dense"

HNSW_LINKS = 32
HNSW_EF_CONSTRUCTION = 160
_LIST_POINTS = 64  # training vectors for each inverted list
_CODE_POINTS = 65_536  # training vectors for codes


@dataclass(frozen=True, slots=True)
class Preset:
    """Parameters of one index type for a corpus of a given size.

    Attributes:
        factory: FAISS factory string; empty for `flat`, which has no FAISS file.
        pq_bytes: product-quantiser bytes per vector; 0 without a quantiser.
        efforts: search efforts to try in order: nprobe for lists, efSearch for the graph, 0 for a full scan.
        over_fetches: candidates fetched per requested result, to try in order.
    """

    name: IndexType
    factory: str
    nlist: int
    pq_bytes: int
    training_rows: int
    efforts: tuple[int, ...]
    over_fetches: tuple[int, ...]

    def code_bytes(self, dim: int) -> float:
        """Bytes per vector in the searched structure, links and list ids included."""
        return {
            "flat": 4.0 * dim,
            "fp16": 2.0 * dim,
            "sq8": 1.0 * dim,
            # 2·M links of 4 bytes at level 0; levels above, offsets and levels take 16 bytes on average.
            "hnsw": dim + 4.0 * 2 * HNSW_LINKS + 16.0,
            "ivf": dim + 8.0,
            "fastscan": self.pq_bytes + 8.0,
            "ivfpq": self.pq_bytes + 8.0,
            # One bit per number, two float32 factors, the id.
            "rabitq": math.ceil(dim / 8) + 8.0 + 8.0,
        }[self.name]

    @property
    def codewords(self) -> int:
        """Entries of each codebook of a product quantiser; 0 without one."""
        return (16 if self.name == "fastscan" else 256) if self.pq_bytes else 0

    def fixed_bytes(self, dim: int) -> float:
        """Bytes that do not depend on the number of vectors: centroids, codebooks, rotation."""
        centroids = 4.0 * dim * self.nlist
        codebooks = 4.0 * dim * (self.codewords or 2)
        rotation = 4.0 * dim * dim if self.name == "rabitq" else 0.0
        # A list is a whole number of blocks of 32 codes and ids: half a block is empty on average. Its size,
        # its room and where it begins take 24 bytes.
        of_list = 16 * (self.pq_bytes + 8.0) + 24
        padding = of_list * self.nlist if self.name == "fastscan" else 0.0
        return centroids + codebooks + rotation + padding


def _list_count(rows: int) -> int:
    """4·√N as a power of two, but at least 39 vectors per list."""
    wanted = 1 << round(math.log2(4 * math.sqrt(max(rows, 1))))
    return max(1, min(wanted, rows // 39))


def _doubling(first: int, last: int) -> tuple[int, ...]:
    steps = [first]
    while steps[-1] * 2 < last:
        steps.append(steps[-1] * 2)
    return (*steps, last) if last > first else (last,)


def preset_for(name: str, rows: int, dim: int) -> Preset:
    """The preset `name` for `rows` vectors of size `dim`.

    Raises:
        ConfigError: there is no such index type.

    Example:
        >>> preset_for("ivfpq", 21_015_324, 768).factory
        'IVF16384,PQ128x8'
        >>> preset_for("sq8", 1000, 384).code_bytes(384)
        384.0
    """
    if name not in INDEX_TYPES:
        raise ConfigError(f"there is no index type {name!r}", hint=f"choose one of {', '.join(INDEX_TYPES)}")
    nlist = _list_count(rows) if name in LISTED_TYPES else 0
    pq_bytes = next(m for m in range(max(dim // 6, 1), 0, -1) if dim % m == 0) if name == "ivfpq" else 0
    codes = dim // 2 if dim % 2 == 0 else dim  # codes of four bits
    if name == "fastscan":
        pq_bytes = math.ceil(codes / 2)
    # A codebook of 2^bits entries needs as many training vectors.
    pq_bits = min(8, max(1, int(math.log2(max(rows, 2)))))
    factories = {
        "flat": "",
        "fp16": "SQfp16",
        "sq8": "SQ8",
        "hnsw": f"HNSW{HNSW_LINKS}_SQ8",
        "ivf": f"IVF{nlist},SQ8",
        "fastscan": f"IVF{nlist},PQ{codes}x4fs",
        "ivfpq": f"IVF{nlist},PQ{pq_bytes}x{pq_bits}",
        "rabitq": f"RR{dim},IVF{nlist},RaBitQ",
    }
    if nlist:
        efforts = _doubling(max(1, nlist // 128), nlist)
    else:
        efforts = (128, 256, 512, 1024, 2048, 4096) if name == "hnsw" else (0,)
    over_fetches: dict[str, tuple[int, ...]] = dict.fromkeys(("sq8", "ivf"), (1, 2, 4))
    over_fetches["fastscan"] = (1, 2, 4, 8, 16)
    over_fetches |= dict.fromkeys(("ivfpq", "rabitq"), (2, 4, 8, 16, 32))
    return Preset(
        name=name,
        factory=factories[name],
        nlist=nlist,
        pq_bytes=pq_bytes,
        training_rows=0 if name == "flat" else min(rows, max(_CODE_POINTS, _LIST_POINTS * nlist)),
        efforts=efforts,
        over_fetches=over_fetches.get(name, (1,)),  # hnsw: efSearch is what is tuned
    )
