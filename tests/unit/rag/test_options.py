"""The typed keywords of the package's calls are the fields of the configurations that check them."""

import pytest
from pydantic import BaseModel

from indexers.settings import BuildSettings
from rag.data.records import CorpusOptions
from rag.eval.settings import EvaluationSettings
from rag.opening import OpenSettings
from rag.options import EvaluationOptions, IndexOptions, MiningOptions, OpenOptions
from rag.rounds.config import RoundsConfig, RoundsOptions
from retrievers.encoders.options import EncoderOptions
from retrievers.negatives.settings import MiningSettings

# Parameters of the calls themselves.
STATED = {
    IndexOptions: {"retriever"},
    EvaluationOptions: {"read"},
    RoundsOptions: {"index", "method", "out", "questions"},
}


@pytest.mark.parametrize(
    ("options", "configurations"),
    [
        (OpenOptions, [OpenSettings]),
        (IndexOptions, [CorpusOptions, EncoderOptions, BuildSettings]),
        (EvaluationOptions, [EvaluationSettings, OpenSettings]),
        (MiningOptions, [MiningSettings]),
        (RoundsOptions, [RoundsConfig]),
    ],
)
def test_typed_keywords_are_the_fields(
    options: type, configurations: list[type[BaseModel]]
) -> None:
    fields = {name for configuration in configurations for name in configuration.model_fields}
    keywords = options.__optional_keys__  # type: ignore[attr-defined]
    assert keywords == fields - STATED.get(options, set())
