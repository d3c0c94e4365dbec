"""`rag demo`: the whole path on the sample corpus, over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from rag.cli.show import format_answer_set
from rag.core.errors import ResourceError

_QUESTIONS = (
    "In what city do the Blue Nile and the White Nile come together?",
    "Who determined the structure of penicillin?",
    "What did soldiers call the X-ray cars of the First World War?",
)


def _get(url: str, payload: dict[str, Any] | None = None, *, timeout_s: float = 60.0) -> Any:
    data = None if payload is None else json.dumps(payload).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.loads(response.read())


def _wait_ready(
    server: subprocess.Popen[bytes], base_url: str, log: Path, *, timeout_s: float = 120.0
) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise ResourceError(f"the server stopped at once; its log:\n{log.read_text()[-2000:]}")
        try:
            _get(f"{base_url}/readyz", timeout_s=2.0)
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise ResourceError(f"the server was not ready after {timeout_s:.0f} s", hint=f"see {log}")


def demo(
    out: Annotated[Path, typer.Option(help="Where the sample index goes.")] = Path("demo-index"),
    port: Annotated[int, typer.Option(help="Port of the demo server.")] = 8765,
) -> None:
    """Index the sample corpus, start the server, ask three questions over HTTP, stop the server."""
    rag = [sys.executable, "-m", "rag.cli.main"]
    typer.echo("1. Index the sample corpus")
    indexed = subprocess.run([*rag, "index", "sample", "--out", str(out), "--retriever", "hybrid"])
    if indexed.returncode:
        raise typer.Exit(indexed.returncode)
    typer.echo(f"\n2. Serve it on http://127.0.0.1:{port} and ask")
    log = out.parent / f"{out.name}.server.log"
    base_url = f"http://127.0.0.1:{port}"
    with open(log, "wb") as log_file:
        server = subprocess.Popen(
            [*rag, "serve", "--index", str(out), "--port", str(port)],
            stdout=log_file,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_ready(server, base_url, log)
            for question in _QUESTIONS:
                result = _get(f"{base_url}/v1/ask", {"question": question, "n_best": 1})
                typer.echo("\n" + format_answer_set(result, colour=sys.stdout.isatty()))
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
    typer.echo(
        "\n3. Go on\n"
        f"   rag serve --index {out}            then open http://127.0.0.1:8000 (or: make serve)\n"
        f'   rag ask "Who …?" --index {out}\n'
        "   rag index MY_CORPUS.jsonl --out my-index --retriever hybrid   (or TSV, Parquet, a folder …)\n"
        "   `rag` is in .venv/bin; activate it with: source .venv/bin/activate"
    )
