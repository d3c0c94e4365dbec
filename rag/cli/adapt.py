"""`rag adapt`: train an index's encoder further on questions made from the corpus."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.adaptation.config import AdaptConfig
from rag.cli.options import OPENING, SEARCH, Count, Options, options_of, some

_SETTINGS = Options(
    some(OPENING, "retriever", "index_encoder")
    | options_of(AdaptConfig, "top_k", panel=SEARCH)
    | options_of(AdaptConfig, "questions", "seed", panel="Questions")
)


def adapt(
    *,
    index: str,
    train: list[Path] | None = None,
    settings: Annotated[dict[str, Any], _SETTINGS],
    config: str | None = None,
    set_: list[str] | None = None,
    threads: Count | None = None,
    out: Path,
) -> None:
    """Adapt an index's encoder to its corpus without labelled questions.

    Questions are made from the index's passages by rules, and the encoder learns from all of them. A killed
    run goes on where it stopped when the same command is given again.

    Args:
        train: Training examples to learn from as well; may be given several times.
        config: Settings of the training, a file or preset; default: retriever-adapt.
        out: Folder of the run; an unfinished one is resumed.
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
