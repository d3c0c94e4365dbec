"""Hybrid search for words that few passages have, over a real index."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from indexers.build import build_index
from indexers.index import Index
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


@pytest.fixture(scope="module", params=["static", "minilm-qa"])
def hybrid(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Retriever]:
    """Hybrid search as it opens by default, with each encoder of the package."""
    folder: Path = tmp_path_factory.mktemp("log") / "index"
    encoder = load_encoder(request.param)
    settings = BuildSettings(retriever="hybrid")
    build_index(shop_log(), folder, encoder=encoder, settings=settings)
    with Index.open(folder) as index:
        yield open_retriever(index, "hybrid", encoder=encoder)


@pytest.mark.parametrize("question", ["INC-88213", "88213", "inc-88213?"])
def test_the_only_passage_with_a_word_of_the_question_comes_first(
    hybrid: Retriever, question: str
) -> None:
    assert hybrid.search([question], 3)[0][0].passage_id == "note-151"
