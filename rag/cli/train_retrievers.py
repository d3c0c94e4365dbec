"""`rag train` dpr, ance, adore, ict, mdr, distill, colbert, reranker and stop: what trains retrievers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rag.cli.options import DATA, TRAINING, RetrieverSpec, option, parameters_of
from rag.cli.recipe import Refresh, files, index, run_recipe, say_encoder, say_once, trains_retriever
from rag.core.errors import ConfigError

_SEARCHED = index("Search its passages at every validation.")


@trains_retriever(index=_SEARCHED)
def dpr(settings: Any) -> None:
    """Train a dense retriever with in-batch and hard negatives (DPR).

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train dpr …
    """
    say_encoder(run_recipe("dpr", settings))


@trains_retriever(refresh=Refresh)
def ance(
    settings: Any,
    role: Annotated[
        Literal["both", "trainer", "refresher"],
        option(
            help="both: train and mine in turn; or one of the two processes that share --out.",
            panel=TRAINING,
        ),
    ] = "both",
) -> None:
    """Train a dense retriever with negatives that it finds itself, found anew as it learns (ANCE).

    In two processes, start the same command twice, with --role trainer and --role refresher. Either may be
    killed at any time.
    """
    from retrievers.training.ance import refresh_negatives, train_ance

    if role == "refresher":
        typer.echo(f"negatives → {refresh_negatives(settings)}")
    else:
        say_encoder(train_ance(settings, role=role))


@trains_retriever()
def adore(settings: Any) -> None:
    """Train the question encoder alone, against the vectors of an index that stays as it is (ADORE).

    Afterwards OUT/index is that index for the trained encoder: nothing has to be encoded again.
    """
    finished = run_recipe("adore", settings)
    typer.echo(f"encoder → {finished}\nindex → {settings.out / 'index'}")
    typer.echo(f"use them: rag ask … --index {settings.out / 'index'}")


@trains_retriever(
    train=files("A built index, or files of documents", "--corpus", "--train"),
    validation=Annotated[
        Path | None,
        option(help="Training examples to score; default: passages that are held out.", panel=DATA),
    ],
    index=_SEARCHED,
)
def ict(settings: Any) -> None:
    """Train a dense retriever from passages alone: a sentence is to find where it was taken from (ICT).

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train ict …
    """
    say_encoder(run_recipe("ict", settings))


@trains_retriever(
    train=files("Question sets with gold passages (HotpotQA …, .gz)"),
    index=index("Its passages are the gold passages, and searched."),
)
def mdr(settings: Any) -> None:
    """Train a retriever over hops: each is asked with the question and the passages found so far (MDR).

    Search with it: --retriever multihop.
    """
    say_encoder(run_recipe("mdr", settings))
    if settings.data.negatives == "index":
        place = settings.out / "index"
        typer.echo(f"or, without encoding anything: rag ask … --index {place} --retriever multihop")


@trains_retriever(
    train=files("Examples with targets, as `rag score` writes them"),
    index=_SEARCHED,
    loss=Annotated[
        Literal["kl", "kl-per-passage", "mse", "margin"] | None,
        option(help="Between scores and targets.", panel=TRAINING),
    ],
)
def distill(settings: Any) -> None:
    """Train a dense retriever towards a reader's scores of retrieved passages (DKRR and its kin).

    No gold passages are needed.

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train distill …
    """
    say_encoder(run_recipe("distill", settings))


@trains_retriever(
    train=files("Examples of `rag mine`, or of `rag score` for --loss kl"),
    index=index("Search its passages at every validation; the first of --rounds finds its passages there."),
    loss=Annotated[
        Literal["softmax", "pairwise", "kl"] | None,
        option(help="kl: towards the targets of `rag score`.", panel=TRAINING),
    ],
)
def colbert(
    settings: Any,
    rounds: Annotated[
        int, typer.Option(min=0, help="Instead of --train: rounds of relevance-guided supervision, at most.")
    ] = 0,
    questions: Annotated[
        str | None, typer.Option("--questions", "-q", help="Of --rounds: with answers; no gold passages.")
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Questions that judge each round; default: a tenth of --questions.")
    ] = None,
    positives: Annotated[
        str, typer.Option(help='Depth rules: "3,50" is the first 3 of the best 50 that hold an answer.')
    ] = "3,50",
    negatives: Annotated[int, typer.Option(min=1, help="Passages without an answer for each of them.")] = 20,
    top_k: Annotated[int, typer.Option(min=2, help="Passages retrieved a question.")] = 100,
    figure: Annotated[
        str, typer.Option(help="Held-out figure that judges: top1, top5, top20, top100.")
    ] = "top1",
    profile: Annotated[
        str, typer.Option(help="Rules of answers: nq_open, squad, trec_search, …")
    ] = "nq_open",
    retriever: RetrieverSpec = "auto",
    next_retriever: Annotated[
        str,
        typer.Option(
            help="For the rounds' own indexes; auto: --retriever where that is hybrid, else colbert."
        ),
    ] = "auto",
    restart: Annotated[
        bool, typer.Option(help="Every round starts from --encoder; otherwise from the last round's.")
    ] = True,
) -> None:
    """Train a retriever of one vector a token (ColBERT) on labelled passages, or in --rounds on answers.

    With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train colbert …
    """
    guidance = {"positives": positives, "negatives": negatives}
    given: dict[str, Any] = {
        "questions": questions, "held_out": held_out, "top_k": top_k, "figure": figure, "profile": profile,
        "retriever": retriever, "next_retriever": next_retriever, "restart": restart,
    }  # fmt: skip
    if not rounds:
        _refuse_changed(colbert, {**given, **guidance})
        say_encoder(run_recipe("colbert", settings))
        return
    from rag.rounds.by_answers import guided_rounds

    lines = guided_rounds(settings, rounds=rounds, **given, guidance=guidance)
    typer.echo("\n".join(lines))
    typer.echo(f"→ {settings.out / 'rounds.json'} names the best round's encoder")


def _refuse_changed(command: Callable[..., None], given: Mapping[str, Any]) -> None:
    """Options of --rounds that would not be read."""
    usual = parameters_of(command)
    if changed := [name for name, value in given.items() if value != usual[name][1]]:
        flags = ", ".join(f"--{'no-' * (given[n] is False)}{n.replace('_', '-')}" for n in changed)
        raise ConfigError(f"{flags}: only --rounds reads this", hint="add --rounds N, or leave it out")


@trains_retriever(
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
