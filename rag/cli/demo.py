"""`rag demo`: index the sample corpus, serve it, and ask it questions over HTTP."""

import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import typer

from rag.cli.show import format_answer_set

_QUESTIONS = (
    "In what city do the Blue Nile and the White Nile come together?",
    "Who determined the structure of penicillin?",
    "What did soldiers call the X-ray cars of the First World War?",
)


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
        "\n3. Go on\n"
        f"   rag serve --index {out}            then open http://127.0.0.1:8000 (or: make serve)\n"
        f'   rag ask "Who …?" --index {out}\n'
        "   rag index MY_CORPUS.jsonl --out my-index   (or TSV, Parquet, a folder …)\n"
        "   `rag` is in .venv/bin; activate it with: source .venv/bin/activate"
    )
