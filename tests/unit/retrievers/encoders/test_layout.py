import pytest

from rag.core.errors import ConfigError
from retrievers.encoders.tokenization import PassageLayout
from tests.support.messages import refusal


@pytest.mark.parametrize(
    "layout", ["{title}", "{text} {id}", "{text", "", "{text.__class__}", "{0}"]
)
def test_bad_layouts_are_refused(layout):
    with refusal(ConfigError):
        PassageLayout(layout)
