"""`rag train orqa`, `mlm`, `realm`, `rag` and `emdr2`: recipes that train retriever and reader together."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rag.cli.options import DATA, SEARCH, TRAINING, IndexEncoder, RayAddress, option
from rag.cli.recipe import Refresh, Role, files, index, run_recipe, say_encoder, say_once, training_command

_INDEX = index("Its passages are read; training starts from its encoder.")


@training_command(
    train=files("Questions with answers, of any format; no passages are needed"),
    index=_INDEX,
    from_=None,
    index_encoder=IndexEncoder,
    answers=Annotated[
        Literal["auto", "strings", "regex"] | None,
        option(help="Whether answers are regular expressions; auto: as the set states.", panel=DATA),
    ],
)
def orqa(
    settings: Any,
    reader: Annotated[
        str | None,
        option(help="Encoder or reader to start from; default: the embedded encoder.", panel=TRAINING),
    ] = None,
) -> None:
    """Train question encoder and span reader from answers alone, over fixed passage vectors (ORQA)."""
    if reader is not None:
        settings = settings.replaced(reader={"encoder": reader})
    run_recipe("orqa", settings)
    typer.echo(f"encoder → {settings.out / 'encoder'}\nreader → {settings.out / 'reader'}")
    typer.echo(f"use them: rag ask … --index {settings.out / 'index'} --reader {settings.out / 'reader'}")


_Marginal = Annotated[
    Literal["sequence", "token"] | None,
    option(help="Sum over passages once for the whole answer (sequence), or at each token.", panel=TRAINING),
]
_MASKS = {
    "masks": Annotated[
        Literal["salient", "random", "span"] | None,
        option(help="Kind of words that are masked; salient: names and dates.", panel=TRAINING),
    ],
}


@training_command(
    train=files("Where sentences are from, an index or documents", "--corpus", "--train"),
    validation=None,
    index=None,
    from_=None,
    **_MASKS,
)
def mlm(
    settings: Any,
    from_: Annotated[
        str | None,
        option(
            "--from",
            help='Encoder or folder of `rag train reader` to start from; "shipped": the reader that ships; '
            "default: the embedded encoder.",
            panel=TRAINING,
        ),
    ] = None,
) -> None:
    """Train an encoder to predict masked names and dates from a passage beside them, as REALM's first reader.

    It is not needed where `rag train realm` can start from a masked language model such as BERT.
    """
    if from_ is not None:
        settings = settings.replaced(mlm={"encoder": from_})
    finished = run_recipe("mlm", settings)
    say_once(f"masked language model → {finished}\nuse it: rag train realm … --reader {finished}")


@training_command(
    train=files("Where sentences are from, an index or documents; default: --index", "--corpus", "--train"),
    index=_INDEX,
    from_=None,
    index_encoder=IndexEncoder,
    **_MASKS,
    marginal=_Marginal,
    refresh=Refresh,
)
def realm(
    settings: Any,
    reader: Annotated[
        str | None,
        option(help="Masked language model to start from; default: the embedded encoder.", panel=TRAINING),
    ] = None,
    role: Role = "both",
    ray: RayAddress = None,
) -> None:
    """Train a retriever by predicting masked names and dates from the passages it retrieves (REALM).

    In two processes, start the same command twice, with --role trainer and --role refresher. Either may be
    killed at any time. Then: rag index … --encoder OUT/encoder, and rag train orqa. Over a fixed index
    (preset realm-question) that is OUT/index already.
    """
    from rag.joint.realm import train_realm

    if reader is not None:
        settings = settings.replaced(mlm={"encoder": reader})
    if finished := _run_held(settings, role, train_realm, ray):
        say_encoder(finished)
        if settings.document_side == "frozen":
            typer.echo(f"its index is there already: rag ask … --index {settings.out / 'index'}")


_TOGETHER = {
    "train": files("Question set with answers, of any format; no passages are needed"),
    "index": _INDEX,
    "from_": None,
    "index_encoder": IndexEncoder,
    "generator": Annotated[
        str | None,
        option(help="Folder of `rag train generator`, or any BART- or T5-like checkpoint.", panel=TRAINING),
    ],
    "document_side": Annotated[
        Literal["frozen", "reencode", "rerank"] | None,
        option(
            help="frozen: only the question side is trained; reencode: passages too, the index is rebuilt "
            "meanwhile; rerank: passages too, retrieved from the old index and ranked by the new model.",
            panel=TRAINING,
        ),
    ],
    "top_k": Annotated[int | None, option(min=1, help="Passages per question.", panel=SEARCH)],
    "marginal": _Marginal,
    "refresh": Refresh,
}


@training_command(
    **_TOGETHER,
    retriever=Annotated[
        str | None,
        option(
            help="trained, or a fixed retriever (bm25, hybrid, …) with which only the generator is trained.",
            panel=SEARCH,
        ),
    ],
)
def rag(settings: Any, role: Role = "both", ray: RayAddress = None) -> None:
    """Train a question encoder and a generator together, by the likelihood of answers (RAG).

    Questions and answers are enough. With --document-side reencode it is trained end to end; in two
    processes, start the same command twice, with --role trainer and --role refresher. With several GPUs:
    torchrun --nproc-per-node N -m rag.cli.main train rag …
    """
    from rag.joint.rag import train_rag

    _run_together(settings, role, train_rag, ray)


@training_command(
    **_TOGETHER,
    objective=Annotated[
        Literal["emdr2", "pdist", "loop", "adist"] | None,
        option(help="Loss that trains the retriever.", panel=TRAINING),
    ],
)
def emdr2(settings: Any, role: Role = "both", ray: RayAddress = None) -> None:
    """Train a retriever and a Fusion-in-Decoder reader in the same steps (EMDR², PDist, LOOP, ADist).

    The retriever learns how well the reader does from each passage alone. Roles and several GPUs: as for
    `rag train rag`.
    """
    from rag.joint.emdr2 import train_emdr2

    _run_together(settings, role, train_emdr2, ray)


def _run_together(settings: Any, role: Role, train: Any, ray: str | None) -> None:
    if finished := _run_held(settings, role, train, ray):
        searched = settings.index if settings.document_side == "frozen" else settings.out / "index"
        kind = getattr(settings, "retriever", "trained")
        found_by = "" if kind == "trained" else f" --retriever {kind}"
        typer.echo(f"reader → {finished}\nuse it: rag ask … --index {searched}{found_by} --reader {finished}")


def _run_held(settings: Any, role: Role, train: Callable[..., Path], ray: str | None) -> Path | None:
    """Train, or make indexes for the process that does; the folder of what was trained, if this one did."""
    from rag.core.errors import ConfigError
    from rag.joint.live_index import refresh_index
    from rag.scale.encoding import encoding_at

    side = getattr(settings, "document_side", "reencode")
    if role != "both" and (side != "reencode" or settings.schedule_of_refresh.is_never):
        raise ConfigError(
            f"--role {role}: no index is refreshed (document_side={side}, refresh={settings.refresh})",
            hint="leave --role out, or train passages too and say when: --document-side reencode --refresh …",
        )
    if ray is not None and side != "reencode":
        raise ConfigError(
            f"--ray encodes the corpus at every refresh, and document_side={side} has none",
            hint="leave it out, or add --document-side reencode",
        )
    with encoding_at(ray) as encoding:
        if role == "refresher":
            typer.echo(f"indexes → {refresh_index(settings, **encoding)}")
            return None
        return train(settings, role=role, **encoding)
