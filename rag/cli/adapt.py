"""`rag adapt`: train a reader or a retriever further on questions made from a corpus."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rag.adaptation.choices import KINDS
from rag.adaptation.config import AdaptConfig
from rag.cli.options import (
    READING,
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
    option,
    options_of,
)

_MADE = "Questions"
_SETTINGS = {
    **options_of(AdaptConfig, "model", panel=_MADE),
    "reader": (
        Annotated[
            str | None,
            option(help="Folder of the reader to adapt; default: the shipped one.", panel=READING),
        ],
        None,
    ),
    "retriever": (RetrieverSpec, "auto"),
    "index_encoder": (IndexEncoder, None),
    **options_of(AdaptConfig, "top_k", panel=SEARCH),
    **options_of(AdaptConfig, "questions", "per_passage", "agreement", "seed", panel=_MADE),
}


@adds_options("settings", _SETTINGS)
def adapt(
    *,
    index: IndexDir,
    train: files("Questions with passages, such as SQuAD's, to learn from as well") = None,  # type: ignore[valid-type]
    kinds: Annotated[
        str, option(help=f"Kinds of made questions, of {','.join(KINDS)}.", panel=_MADE)
    ] = ",".join(AdaptConfig.model_fields["kinds"].default),
    settings: dict[str, Any],
    config: config_source(  # type: ignore[valid-type]
        "Settings of the training, a file or preset; default: reader-adapt or retriever-adapt."
    ) = None,
    set_: Assignments = None,
    threads: Threads = None,
    out: Out,
) -> None:
    """Adapt the reader or the retriever to a corpus without labelled questions.

    Questions are made from the index's passages by rules. The retriever learns from all of them, the reader
    from those on which search and reader agree. A killed run goes on where it stopped when the same command
    is given again.
    """
    from rag.config import parse_overrides
    from rag.core.log import setup_logging
    from rag.jobs import adapt as run

    setup_logging("INFO")
    training = parse_overrides(set_ or []) | ({} if threads is None else {"threads": threads})
    finished = run(
        index, out, config=config, training=training, kinds=kinds, replay=[str(path) for path in train or ()],
        **settings,
    )  # fmt: skip
    from rag.adaptation.adapt import report_lines

    typer.echo("\n".join(report_lines(Path(out))))
    if settings["model"] == "retriever":
        typer.echo(f"encoder → {finished}\nuse it: rag index … --encoder {finished}")
    else:
        typer.echo(f"reader → {finished}\nuse it: rag ask … --index {index} --reader {finished}")
