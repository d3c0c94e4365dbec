"""Hybrid search for words that few passages have, over a real index."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.types import Passage
from retrievers.encoders.open import load_encoder
from retrievers.open import open_retriever
from retrievers.protocols import Retriever

_PARTS = ("pump", "valve", "bearing", "motor", "filter", "belt", "sensor", "hose", "gear", "seal")
_STATES = ("was checked", "runs dry", "was replaced", "is loud", "waits for a spare part")


def shop_log() -> list[Passage]:
    """Three hundred notes on tickets; a single note names an incident."""
    texts = [
        f"TCK-{88300 + number}: the {_PARTS[number % 10]} in hall {number % 7} {_STATES[number % 5]}."
        for number in range(300)
    ]
    texts[151] = (
        "Night shift, page 4. Coffee machine descaled, windows closed, nothing to hand over. "
        "The press leaked again (INC-88213); sealed before breakfast."
    )
    return [Passage(f"note-{row:03d}", "", text) for row, text in enumerate(texts)]


def price_list() -> list[Passage]:
    """Two hundred rows whose article numbers differ in their digits alone."""
    passages = []
    for number in range(1100, 1300):
        part = _PARTS[number % 10]
        text = f"Article: ART-0{number}; Name: {part}; Price in EUR: {number * 7 % 900}.{number % 90 + 10}"
        passages.append(Passage(f"article-0{number}", "Price list", text))
    return passages


@pytest.fixture(scope="module", params=["static", "minilm-qa"])
def hybrid(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Retriever]:
    """Hybrid search as it opens by default, with each encoder of the package."""
    folder: Path = tmp_path_factory.mktemp("log") / "index"
    encoder = load_encoder(request.param)
    settings = BuildSettings(retriever="hybrid")
    write_index(folder, [*shop_log(), *price_list()], encoder=encoder, settings=settings)
    with Index.open(folder) as index:
        yield open_retriever(index, "hybrid", encoder=encoder)


@pytest.mark.parametrize(
    ("question", "passage_id"),
    [
        ("INC-88213", "note-151"),
        ("88213", "note-151"),
        ("inc-88213?", "note-151"),
        ("What happened in INC-88213?", "note-151"),
        ("ART-01234", "article-01234"),
        ("What does article ART-01234 cost?", "article-01234"),
        ("price of ART-01142", "article-01142"),
        ("TCK-88571", "note-271"),
    ],
)
def test_the_only_passage_with_a_number_comes_first(
    hybrid: Retriever, question: str, passage_id: str
) -> None:
    assert hybrid.search([question], 3)[0][0].passage_id == passage_id
