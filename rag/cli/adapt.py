"""`rag adapt`: train an index's encoder further on questions made from the corpus."""

from pathlib import Path
from typing import Any

import typer

from rag.adaptation.config import AdaptConfig
from rag.cli.options import (
    SEARCH,
    Assignments,
    IndexDir,
    IndexEncoder,
    Out,
    RetrieverSpec,
    Threads,
    adds_options,
    config_source,
    files,
    options_of,
)

_SETTINGS = {
    "retriever": (RetrieverSpec, "auto"),
    "index_encoder": (IndexEncoder, None),
    **options_of(AdaptConfig, "top_k", panel=SEARCH),
    **options_of(AdaptConfig, "questions", "seed", panel="Questions"),
}


@adds_options("settings", _SETTINGS)
def adapt(
    *,
    index: IndexDir,
    train: files("Training examples to learn from as well") = None,  # type: ignore[valid-type]
    settings: dict[str, Any],
    config: config_source(  # type: ignore[valid-type]
        "Settings of the training, a file or preset; default: retriever-adapt."
    ) = None,
    set_: Assignments = None,
    threads: Threads = None,
    out: Out,
) -> None:
    """Adapt an index's encoder to its corpus without labelled questions.

    Questions are made from the index's passages by rules, and the encoder learns from all of them. A killed
    run goes on where it stopped when the same command is given again.
    """
    from rag.commands import adapt as run
    from rag.config import parse_overrides
    from rag.core.log import setup_logging

    setup_logging("INFO")
    training = parse_overrides(set_ or []) | ({} if threads is None else {"threads": threads})
    replay = [str(path) for path in train or ()]
    finished = run(index, out, config=config, training=training, replay=replay, **settings)
    typer.echo(f"questions → {Path(out) / 'questions.json'}")
    typer.echo(f"encoder → {finished}\nuse it: rag index … --encoder {finished}")
