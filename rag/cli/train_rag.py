"""`rag train rag` and `emdr2`: what trains a retriever and a generator together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rag.cli.recipe import Role, RoleOption, files, index, run_held, trains_retriever

_OPTIONS = {
    "train": files("Question set with answers, of any format; no passages are needed"),
    "index": index("Its passages are read; training starts from its encoder."),
    "encoder": Annotated[
        str | None, typer.Option(help="The index's encoder, if it is not where the index says.")
    ],
    "generator": Annotated[
        str | None, typer.Option(help="Folder of `rag train generator`, or any BART- or T5-like checkpoint.")
    ],
    "document_side": Annotated[
        str | None,
        typer.Option(
            help="frozen: questions are learned alone; reencode: passages too, the index is made anew while "
            "training; rerank: passages too, found in the old index and ranked by the new model."
        ),
    ],
    "top_k": Annotated[int | None, typer.Option(help="Passages a question.")],
    "marginal": Annotated[str | None, typer.Option(help="sequence or token.")],
    "refresh": Annotated[
        str | None,
        typer.Option(help='"never", "500:500", "500:500,2000:2000" (from step:every), "drift>0.05".'),
    ],
}


@trains_retriever(**_OPTIONS)
def rag(settings: Any, role: RoleOption = Role.BOTH) -> None:
    """Train a question encoder and a generator through the passages between them (RAG).

    Questions and answers are enough. With --document-side reencode it is trained end to end; in two
    processes, start the same command twice, with --role trainer and --role refresher. With several GPUs:
    torchrun --nproc-per-node N -m rag.cli.main train rag …
    """
    from rag.joint.rag import train_rag

    _run(settings, role, train_rag)


@trains_retriever(
    **_OPTIONS,
    objective=Annotated[str | None, typer.Option(help="The retriever's: emdr2, pdist, loop or adist.")],
)
def emdr2(settings: Any, role: RoleOption = Role.BOTH) -> None:
    """Train a retriever and a Fusion-in-Decoder reader in the same steps (EMDR², PDist, LOOP, ADist).

    The retriever learns how well the reader does from each passage alone. Roles and several GPUs: as for
    `rag train rag`.
    """
    from rag.joint.emdr2 import train_emdr2

    _run(settings, role, train_emdr2)


def _run(settings: Any, role: Role, train: Any) -> None:
    if finished := run_held(settings, role, train):
        searched = settings.index if settings.document_side == "frozen" else settings.out / "index"
        typer.echo(f"reader → {finished}\nuse it: rag ask … --index {searched} --reader {finished}")
