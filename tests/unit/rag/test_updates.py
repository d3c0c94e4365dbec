"""How an index cuts its documents."""

from typing import Any

import pytest

from rag.data.split import MAX_SECTION_TOKENS, estimated_tokens
from rag.updates import Cutter


@pytest.mark.parametrize(
    ("stated", "encoder_tokens", "expected"),
    [({}, 254, 254), ({}, 8190, MAX_SECTION_TOKENS), ({"max_tokens": 2000}, 8190, 2000)],
)
def test_sections_are_short_unless_a_length_is_stated(
    stated: dict[str, Any], encoder_tokens: int, expected: int
) -> None:
    cutter = Cutter(stated, lambda: (encoder_tokens, estimated_tokens))
    assert cutter.options.max_tokens == expected
