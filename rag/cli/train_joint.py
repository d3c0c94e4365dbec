"""`rag train orqa` and `realm`: what trains retriever and reader together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rag.cli.recipe import (
    Refresh,
    Role,
    RoleOption,
    files,
    index,
    run_held,
    run_recipe,
    say_encoder,
    trains_retriever,
)

_INDEX = index("Its passages are read; training starts from its encoder.")
_ENCODER = Annotated[
    str | None, typer.Option(help="The encoder of the index, if it lies elsewhere than the index says.")
]


@trains_retriever(
    train=files("Questions with answers, of any format; no passages are needed"),
    index=_INDEX,
    encoder=_ENCODER,
    answers=Annotated[
        str | None, typer.Option(help="strings, regex (expressions), or auto: what the set says.")
    ],
)
def orqa(
    settings: Any,
    reader: Annotated[
        str | None, typer.Option(help="Encoder, or reader to go on from; default: the embedded encoder.")
    ] = None,
) -> None:
    """Train question encoder and span reader together from answers alone; passage vectors stay (ORQA)."""
    if reader is not None:
        settings = settings.replaced(reader={"encoder": reader})
    run_recipe("orqa", settings)
    typer.echo(f"encoder → {settings.out / 'encoder'}\nreader → {settings.out / 'reader'}")
    typer.echo(f"use them: rag ask … --index {settings.out / 'index'} --reader {settings.out / 'reader'}")


@trains_retriever(
    train=files("Where sentences are from, an index or files; default: --index", "--corpus", "--train"),
    index=_INDEX,
    encoder=_ENCODER,
    masks=Annotated[str | None, typer.Option(help="salient (names and dates), random or span.")],
    tagger=Annotated[
        str | None, typer.Option(help="Token classification model that finds names; default: by looks.")
    ],
    marginal=Annotated[str | None, typer.Option(help="sequence or token.")],
    refresh=Refresh,
)
def realm(
    settings: Any,
    reader: Annotated[
        str | None, typer.Option(help="Masked language model to start from; default: the embedded encoder.")
    ] = None,
    role: RoleOption = Role.BOTH,
) -> None:
    """Train a retriever by filling in masked names and dates with what it finds (REALM).

    In two processes, start the same command twice, with --role trainer and --role refresher. Either may be
    killed at any time. Then: rag index … --encoder OUT/encoder, and rag train orqa.
    """
    from rag.joint.realm import train_realm

    if reader is not None:
        settings = settings.replaced(mlm={"encoder": reader})
    if finished := run_held(settings, role, train_realm):
        say_encoder(finished)
