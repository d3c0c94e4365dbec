"""Published nDCG@10 of BEIR's sets, for comparison with `rag evaluate --dataset irds:beir/…`.

Source: Thakur et al., BEIR, NeurIPS 2021, table 2; Muennighoff et al., MTEB, EACL 2023, and its leaderboard.
"""

PUBLISHED = {  # corpus → per cent: BM25 of titles and texts, all-MiniLM-L6-v2
    "arguana": (31.5, 50.2),
    "climate-fever": (21.3, 20.3),
    "dbpedia-entity": (31.3, 32.3),
    "fever": (75.3, 51.9),
    "fiqa": (23.6, 36.9),
    "hotpotqa": (60.3, 46.5),
    "nfcorpus": (32.5, 31.6),
    "nq": (32.9, 43.9),
    "quora": (78.9, 87.6),
    "scidocs": (15.8, 21.6),
    "scifact": (66.5, 64.5),
    "trec-covid": (65.6, 47.3),
}


def published_figures(name: str) -> str:
    """A line with what is published for a set, "" if nothing is known.

    Example:
        >>> published_figures("irds:beir/scifact/test")
        'published nDCG@10: BM25 66.5 %, all-MiniLM-L6-v2 64.5 %'
    """
    family, _, rest = name.partition(":")[2].partition("/")
    figures = PUBLISHED.get(rest.partition("/")[0]) if family == "beir" else None
    if figures is None:
        return ""
    return "published nDCG@10: BM25 {} %, all-MiniLM-L6-v2 {} %".format(*figures)
