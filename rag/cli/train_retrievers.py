"""`rag train` dpr, ance, ict, mdr, distill, static, colbert and reranker: recipes for retrievers."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rag.cli.options import DATA, TRAINING, RayAddress, option
from rag.cli.recipe import Refresh, Role, files, index, run_recipe, say_encoder, say_once, training_command

_SEARCHED = index("Search its passages at every validation.")


@training_command(index=_SEARCHED)
def dpr(settings: Any) -> None:
    """Train a dense retriever with in-batch and hard negatives (DPR).

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train dpr …
    """
    say_encoder(run_recipe("dpr", settings))


@training_command(refresh=Refresh)
def ance(
    settings: Any,
    role: Role = "both",
    ray: RayAddress = None,
) -> None:
    """Train a dense retriever with negatives that it retrieves itself, renewed as it learns (ANCE).

    In two processes, start the same command twice, with --role trainer and --role refresher. Either may be
    killed at any time.
    """
    from rag.scale.encoding import encoding_at
    from retrievers.training.ance import refresh_negatives, train_ance

    with encoding_at(ray) as encoding:
        if role == "refresher":
            typer.echo(f"negatives → {refresh_negatives(settings, **encoding)}")
        else:
            say_encoder(train_ance(settings, role=role, **encoding))


@training_command(
    train=files("A built index, or files and folders of documents", "--corpus", "--train"),
    validation=Annotated[
        Path | None,
        option(
            help="Training examples on which to measure retrieval; default: held-out passages.",
            panel=DATA,
        ),
    ],
    index=_SEARCHED,
)
def ict(settings: Any) -> None:
    """Train a dense retriever from passages alone: a sentence is the query for its passage (ICT).

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train ict …
    """
    say_encoder(run_recipe("ict", settings))


@training_command(
    train=files("Question sets with gold passages (HotpotQA …, .gz)"),
    index=index("Its passages are the gold passages, and searched."),
)
def mdr(settings: Any) -> None:
    """Train a multi-hop retriever, which searches with the question and the passages so far (MDR).

    Search with it: --retriever multihop.
    """
    say_encoder(run_recipe("mdr", settings))
    if settings.data.negatives == "index":
        place = settings.out / "index"
        typer.echo(f"or, without encoding anything: rag ask … --index {place} --retriever multihop")


@training_command(
    train=files("Examples with targets, as `rag score` writes them"),
    index=_SEARCHED,
    loss=Annotated[
        Literal["kl", "kl-per-passage", "margin"] | None,
        option(help="Loss between scores and targets.", panel=TRAINING),
    ],
)
def distill(settings: Any) -> None:
    """Train a dense retriever towards a reader's scores of retrieved passages (DKRR and its kin).

    No gold passages are needed.

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train distill …
    """
    say_encoder(run_recipe("distill", settings))


@training_command(
    train=files("Training examples of `rag mine` or DPR's JSON (.gz); without any the corpus alone teaches"),
    index=index("Its encoder is the teacher, and its vectors are fitted."),
    corpus=files("Where sentences come from: an index, or documents; default: --index"),
    from_=None,
    refresh=Refresh,
)
def static(settings: Any) -> None:
    """Make a static encoder, a vector per token, from any encoder: thousands of passages per second and core.

    It is fitted to the vectors of an index, then learns from questions and from sentences of a corpus. With
    --refresh "every 100" it mines hard negatives anew with its own vectors while it learns.
    """
    finished = run_recipe("static", settings)
    say_once(f"encoder → {finished}\nuse it: rag index … --encoder {finished} --retriever hybrid")


@training_command(
    train=files("Examples of `rag mine`, or of `rag score` for --loss kl"),
    index=_SEARCHED,
    loss=Annotated[
        Literal["softmax", "pairwise", "kl"] | None,
        option(help="kl: learn the targets of `rag score`.", panel=TRAINING),
    ],
)
def colbert(settings: Any) -> None:
    """Train a retriever with one vector per token (ColBERT) on labelled passages.

    From answers alone: `rag rounds --recipe colbert`. With several GPUs: torchrun --nproc-per-node N -m
    rag.cli.main train colbert …
    """
    say_encoder(run_recipe("colbert", settings))


@training_command(
    train=files("Examples with hard negatives, as `rag mine` writes them"),
    index=None,
    from_=Annotated[
        str | None,
        option(
            "--from",
            help='Encoder, cross-encoder or folder of `rag train reader` to start from; "shipped": the '
            "reader that ships; default: the embedded encoder.",
            panel=TRAINING,
        ),
    ],
)
def reranker(settings: Any) -> None:
    """Train a cross-encoder, which reads question and passage together, to re-rank what a search finds.

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train reranker …
    """
    finished = run_recipe("reranker", settings)
    say_once(f"cross-encoder → {finished}\nuse it: rag ask … --rerank {finished}")
