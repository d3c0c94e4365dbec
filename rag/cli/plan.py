"""`rag plan`: the size of an index, before it is built."""

import json
from typing import Annotated, Any

import typer
from annotated_types import Ge

from indexers.settings import BuildSettings
from rag.cli.options import Count, options_of

_SETTINGS = options_of(
    BuildSettings, "retriever", "index_type", "token_bits", "dtype", panel="Index", retriever="hybrid"
)


def plan(
    *,
    passages: Count,
    passage_bytes: Annotated[float, Ge(1)] = 650.0,
    settings: Annotated[dict[str, Any], _SETTINGS],
    dim: Count = 384,
    as_json: bool = False,
) -> None:
    """State disk and memory of an index for a corpus size, a vector size and an index type.

    Args:
        passages: Number of passages.
        passage_bytes: Mean bytes of title and text.
        dim: Vector size of the encoder.
    """
    from indexers.plan import plan as plan_index
    from rag.config import load_config

    checked = load_config(BuildSettings, overrides=settings)
    result = plan_index(passages, dim, settings=checked, passage_bytes=passage_bytes)
    typer.echo(json.dumps(result.to_json(), indent=2) if as_json else result.describe())
