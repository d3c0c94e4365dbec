"""`rag plan`: the size of an index, before it is built."""

import json
from typing import Annotated, Any

import typer

from indexers.settings import BuildSettings
from rag.cli.options import OUTPUT, adds_options, option, options_of

_SETTINGS = options_of(
    BuildSettings, "retriever", "index_type", "token_bits", "dtype", panel="Index", retriever="hybrid"
)


@adds_options("settings", _SETTINGS)
def plan(
    *,
    passages: Annotated[int, option(*("--passages", "-n"), min=1, help="Number of passages.", panel="Index")],
    passage_bytes: Annotated[
        float, option(min=1, help="Mean bytes of title and text.", panel="Index")
    ] = 650.0,
    settings: dict[str, Any],
    dim: Annotated[int, option(min=1, help="Vector size of the encoder.", panel="Index")] = 384,
    as_json: Annotated[bool, option("--json", help="Print JSON.", panel=OUTPUT)] = False,
) -> None:
    """State disk and memory of an index for a corpus size, a vector size and an index type."""
    from indexers.plan import plan as plan_index
    from rag.config import load_config

    checked = load_config(BuildSettings, overrides=settings)
    result = plan_index(passages, dim, settings=checked, passage_bytes=passage_bytes)
    typer.echo(json.dumps(result.to_json(), indent=2) if as_json else result.describe())
