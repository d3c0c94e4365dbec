from collections.abc import Iterator
from pathlib import Path

import pytest

import rag
from rag.core.types import Location, Passage

PASSAGES = (
    Passage("rivers/1", "Danube", "The Danube rises in the Black Forest of Germany."),
    Passage(
        "rivers/2", "Rhine", "The Rhine begins in the Swiss Alps and flows north to the North Sea."
    ),
    Passage(
        "web#3",
        "",
        "Mount Kenya is the highest mountain of Kenya.",
        Location("https://example.org/kenya"),
    ),
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three passages."""
    out = tmp_path_factory.mktemp("integrations") / "index"
    rag.Pipeline.from_texts(PASSAGES, out=out, reader=False).close()
    return out


@pytest.fixture(scope="session")
def pipeline(folder: Path) -> Iterator[rag.Pipeline]:
    opened = rag.Pipeline.open(folder)
    yield opened
    opened.close()
