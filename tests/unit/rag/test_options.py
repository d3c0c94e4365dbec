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
from retrievers.hybrid import Fusion
from retrievers.multihop import MultiHop
from retrievers.negatives.settings import MiningSettings
from retrievers.rerank import Rerank

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


@pytest.mark.parametrize(
    ("name", "spec", "stated"),
    [
        ("retriever", MultiHop(beam=10), "multihop:hops=2,beam=10,first=dense"),
        ("fusion", Fusion("minmax", (0.7, 0.3)), "minmax:0.7,0.3"),
        ("rerank", Rerank(model="reader", depth=20), "reader,depth=20,fusion=std:1,0.5"),
    ],
)
def test_an_object_means_what_the_command_line_states(name: str, spec: object, stated: str) -> None:
    of_object = OpenSettings.model_validate({name: spec})
    assert of_object == OpenSettings.model_validate({name: stated})
    assert getattr(of_object, name) == stated
