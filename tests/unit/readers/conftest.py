from pathlib import Path

import pytest

from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from tests.tiny_reader import tiny_encoder, tiny_tokenizer

SMALL = ReaderSettings(
    max_tokens=64, stride_tokens=8, question_tokens=24, title_tokens=8, spans_per_window=6
)


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def reader(encoder_folder: Path) -> ExtractiveReader:
    """A reader with random weights: its answers are arbitrary, its bookkeeping is not."""
    return ExtractiveReader(SpanModel.from_encoder(encoder_folder, seed=3), tiny_tokenizer(), SMALL)
