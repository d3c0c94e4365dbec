"""`rag bench`: measure this system on this machine, one subcommand a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag.cli.options import EncoderSpec, Precision, ReaderSpec

if TYPE_CHECKING:
    from rag.bench.report import Report

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Measure this system on this machine, one subcommand a table.",
)

_IndexDir = Annotated[Path, typer.Option("--index", "-i", help="Directory written by `rag index`.")]
_Questions = Annotated[
    Path, typer.Option("--questions", "-q", help="Question file: SQuAD, DPR, JSONL … (.gz too).")
]
_Corpus = Annotated[
    list[str], typer.Option("--corpus", help="Input of `rag index`; may be given several times.")
]
_Json = Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")]
_Format = Annotated[str, typer.Option(help="Format of the input; auto looks at the file.")]
_WorkDir = Annotated[Path | None, typer.Option(help="Folder for temporary indexes.")]


def _show(report: Report, out: Path | None) -> None:
    if out is not None:
        report.write(out)
    typer.echo(report.to_text())


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.callback()
def _group() -> None:
    """Measure this system on this machine, one subcommand a table."""
    from rag.core.log import setup_logging
    from rag.runtime.hardware import use_threads

    setup_logging("WARNING")
    use_threads()


@app.command()
def encode(
    corpus: _Corpus,
    n: Annotated[int, typer.Option("--n", help="Passages to encode.")] = 2000,
    split: Annotated[str, typer.Option(help="words100, sentences or none.")] = "words100",
    encoder: Annotated[str | None, typer.Option(help="sentence-transformers folder or hub name.")] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", "-q", help="To compare the best ten.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Most texts in a batch, for all.")] = 32,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 3,
    contestants: Annotated[
        str, typer.Option(help="Some of: ours bf16, ours fp32, peer bf16, peer fp32. All that run here.")
    ] = "",
    format: _Format = "auto",
    json: _Json = None,
) -> None:
    """Passages encoded a second beside sentence-transformers, and whether bf16 finds the same."""
    from rag.bench.encode import run_encode_benchmark

    report = run_encode_benchmark(
        corpus, n=n, split=split, encoder=encoder, questions_path=questions, batch_size=batch_size,
        rounds=rounds, contestants=_names(contestants) or None, format=format,
    )  # fmt: skip
    _show(report, json)


@app.command()
def overhead(
    corpus: _Corpus,
    n: Annotated[int, typer.Option("--n", help="Passages to use.")] = 10_000,
    split: Annotated[str, typer.Option(help="words100, sentences or none.")] = "words100",
    retriever: Annotated[str, typer.Option(help="dense or hybrid.")] = "dense",
    index_type: Annotated[str, typer.Option(help="FAISS index type.")] = "flat",
    encoder: EncoderSpec = None,
    precision: Precision = "auto",
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 3,
    format: _Format = "auto",
    work_dir: _WorkDir = None,
    json: _Json = None,
) -> None:
    """Corpus to finished index, against encoding the same passages alone."""
    from rag.bench.overhead import run_overhead_benchmark

    report = run_overhead_benchmark(
        corpus, n=n, split=split, retriever=retriever, index_type=index_type, encoder=encoder,
        precision=precision, rounds=rounds, format=format, work_dir=work_dir,
    )  # fmt: skip
    _show(report, json)


@app.command()
def search(
    index: _IndexDir,
    questions: Annotated[Path | None, typer.Option("--questions", "-q", help="Real queries.")] = None,
    batch_sizes: Annotated[str, typer.Option(help="Queries searched at once.")] = "1,32,512",
    top_k: Annotated[int, typer.Option(help="Results wanted.")] = 100,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 15,
    encoder: EncoderSpec = None,
    precision: Precision = "auto",
    format: _Format = "auto",
    json: _Json = None,
) -> None:
    """Flat search against bare FAISS on the same vectors, for questions or noisy passage vectors."""
    from rag.bench.search import open_vectors, run_search_benchmark
    from rag.config import parse_numbers

    sizes = parse_numbers(batch_sizes, "--batch-sizes")
    embeddings, queries = open_vectors(index, questions, encoder=encoder, precision=precision, format=format)
    settings = {"index": index, "queries": questions or "noisy passages"}
    report = run_search_benchmark(
        embeddings, queries, batch_sizes=sizes, top_k=top_k, rounds=rounds, settings=settings
    )
    _show(report, json)


@app.command()
def lossy(
    embeddings: Annotated[Path, typer.Option("--embeddings", "-i", help="An index with embeddings.")],
    queries: Annotated[Path, typer.Option("--queries", "-q", help="File of real questions.")],
    index_types: Annotated[str, typer.Option(help="FAISS index types.")] = "fp16,sq8,hnsw,ivf,ivfpq,rabitq",
    batch_sizes: Annotated[str, typer.Option(help="Queries searched at once.")] = "1,32",
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 9,
    max_queries: Annotated[int, typer.Option(help="Recall is measured on at most this many.")] = 2000,
    encoder: EncoderSpec = None,
    precision: Precision = "auto",
    format: _Format = "auto",
    work_dir: _WorkDir = None,
    json: _Json = None,
) -> None:
    """Every lossy index type against exact search: recall, build time, size, search time."""
    from rag.bench.lossy import run_lossy_benchmark
    from rag.bench.search import open_vectors
    from rag.config import parse_numbers

    shards, vectors = open_vectors(
        embeddings, queries, encoder=encoder, precision=precision, format=format, limit=max_queries
    )
    assert vectors is not None
    report = run_lossy_benchmark(
        shards, vectors, index_types=_names(index_types),
        batch_sizes=parse_numbers(batch_sizes, "--batch-sizes"), rounds=rounds, work_dir=work_dir,
        settings={"index": embeddings, "questions": queries},
    )  # fmt: skip
    _show(report, json)


@app.command()
def serve(
    index: _IndexDir,
    questions: _Questions,
    clients: Annotated[str, typer.Option(help="Numbers of clients, separated by commas.")] = "1,16",
    requests: Annotated[int, typer.Option(help="Requests per number of clients and server.")] = 480,
    top_k: Annotated[int, typer.Option(help="Passages to read.")] = 20,
    rounds: Annotated[int, typer.Option(help="The two servers take turns this often.")] = 3,
    retriever: Annotated[str, typer.Option(help="auto, dense, bm25 or hybrid.")] = "auto",
    reader: ReaderSpec = None,
    precision: Precision = "auto",
    format: _Format = "auto",
    json: _Json = None,
) -> None:
    """Latency and throughput of a real server over HTTP, with and without batching."""
    from rag.bench.serve import run_serve_benchmark
    from rag.config import parse_numbers

    report = run_serve_benchmark(
        index, questions, clients=parse_numbers(clients, "--clients"), requests=requests, top_k=top_k,
        rounds=rounds, retriever=retriever, reader=reader, precision=precision, format=format,
    )  # fmt: skip
    _show(report, json)


@app.command()
def memory(
    index: _IndexDir,
    questions: _Questions,
    n: Annotated[int, typer.Option("--n", help="Questions to ask.")] = 500,
    top_k: Annotated[int, typer.Option(help="Passages to read.")] = 20,
    retriever: Annotated[str, typer.Option(help="auto, dense, bm25 or hybrid.")] = "auto",
    reader: ReaderSpec = None,
    precision: Precision = "auto",
    format: _Format = "auto",
    json: _Json = None,
) -> None:
    """Memory of a serving process after real questions, against the planner's figure."""
    from rag.bench.memory import run_memory_benchmark

    report = run_memory_benchmark(
        index, questions, n=n, top_k=top_k, retriever=retriever, reader=reader, precision=precision,
        format=format,
    )  # fmt: skip
    _show(report, json)


@app.command()
def train(
    train: Annotated[Path, typer.Option(help="Training examples of `rag mine`, or DPR's JSON.")],
    batch_size: Annotated[int, typer.Option(help="Questions a step.")] = 128,
    chunk_size: Annotated[int, typer.Option(help="Texts at once, for the cached ones.")] = 32,
    tokens: Annotated[int, typer.Option(help="Longest text.")] = 128,
    hard_negative: Annotated[bool, typer.Option(help="Each question brings a hard negative.")] = True,
    rounds: Annotated[int, typer.Option(help="Measured steps of each, in turn.")] = 5,
    contestants: Annotated[str | None, typer.Option(help="Some of those in the table; default: all.")] = None,
    memory_goal_gib: Annotated[
        float | None, typer.Option(help="Bound for the peak of ours with the cache.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="sentence-transformers folder or hub name.")] = None,
    seed: Annotated[int, typer.Option(help="Of the order of the examples.")] = 0,
    json: _Json = None,
) -> None:
    """Step time and memory of retriever training beside sentence-transformers' two losses."""
    from rag.bench.train import DEFAULT_CONTESTANTS, run_train_benchmark

    report = run_train_benchmark(
        train, encoder=encoder, batch_size=batch_size, chunk_size=chunk_size, tokens=tokens,
        hard_negative=hard_negative, rounds=rounds, seed=seed,
        contestants=_names(contestants) if contestants else DEFAULT_CONTESTANTS,
        memory_goal_bytes=None if memory_goal_gib is None else memory_goal_gib * 2**30,
    )  # fmt: skip
    _show(report, json)
