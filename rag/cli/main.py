"""Entry point of `rag`: registers the commands, maps errors to exit codes."""

import importlib
import os
import sys
import traceback
from typing import Annotated, Any

import typer

from rag import __version__
from rag.cli.lazy import check_name, group_of
from rag.core.errors import RagError, ResourceError

_COMMANDS = {  # name → module, panel of the help, summary
    "index": (
        "index",
        "Build",
        "Build an index from a corpus: passages, embeddings, FAISS, BM25, manifest.",
    ),
    "plan": ("look", "Build", "State the size of an index before it is built."),
    "inspect": ("look", "Build", "Show what is in an index; --verify checks every checksum."),
    "ask": ("ask", "Ask", "Ask a question; prints answers with their evidence."),
    "retrieve": (
        "ask",
        "Ask",
        "Search for many questions; writes DPR's results JSON or a TREC run.",
    ),
    "serve": ("ask", "Ask", "Answer over HTTP, with a web page."),
    "mcp": ("ask", "Ask", "Serve an index to MCP clients: search, fetch and ask as tools."),
    "demo": ("look", "Ask", "Index the sample corpus, serve it, ask three questions over HTTP."),
    "mine": ("teach", "Train", "Mine hard negatives: questions and an index to training examples."),
    "score": ("teach", "Train", "Score training passages by what a reader makes of them."),
    "train": ("train", "Train", "Train a retriever or a reader."),
    "adapt": (
        "teach",
        "Train",
        "Adapt an index's encoder to its corpus without labelled questions.",
    ),
    "questions": (
        "teach",
        "Train",
        "Have a language model write questions for an index's passages.",
    ),
    "rounds": ("teach", "Train", "Teach a retriever in rounds, from questions and answers alone."),
    "tune": ("teach", "Train", "Fit the reader's confidence to a corpus."),
    "evaluate": ("measure", "Measure", "Evaluate an index and a reader on a question set."),
    "compare": (
        "measure",
        "Measure",
        "Compare evaluated systems on the same questions, with tests.",
    ),
    "bench": ("bench", "Measure", "Measure this system beside its peers on this machine."),
    "doctor": ("look", "Measure", "Check versions, hardware, Java, and what is missing."),
    "docs": ("look", "Learn", "List the guides, or print one of them."),
}
_REMOVED = {  # command → what to use instead
    "convert": "`rag retrieve` writes TREC runs and DPR's JSON",
    "import": "--encoder and --from open a model by its folder or name; `rag train` writes whole weights",
    "split": "`rag index` takes several corpora at once, and cuts each by --split",
}
_LOGGED = ("mine", "score", "adapt", "questions", "rounds")  # what they do is logged


def load_command(name: str) -> Any:
    """The command, or the group of commands, of this name; imports its module."""
    check_name(name, _COMMANDS, _REMOVED)
    module = importlib.import_module(f"rag.cli.{_COMMANDS[name][0]}")
    if hasattr(module, "app"):
        group: Any = typer.main.get_command(module.app)
        group.name = name
        return group
    from rag.cli.options import command_of

    return command_of(name, getattr(module, name))


app = group_of(
    "Open-domain question answering that retrieves: index a corpus, ask with evidence, train, evaluate.",
    {name: entry[1:] for name, entry in _COMMANDS.items()},
    load_command,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"rag {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """See `group_of`."""


def main(arguments: list[str] | None = None) -> None:
    """Run `rag`; errors meant for the user become one message and an exit code.

    `--debug` anywhere on the line shows the traceback as well.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] and words[0] in _LOGGED:
        from rag.core.log import setup_logging

        setup_logging("INFO")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # in a log file they are clutter
    try:
        app(args=words, prog_name="rag")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _explain(error)
        typer.echo(message, err=True)
        sys.exit(code)


def _explain(error: Exception) -> tuple[str, int]:
    """What is said of an error, and the exit code."""
    if isinstance(error, RagError):
        return f"error: {error}", error.exit_code
    if isinstance(error, MemoryError):
        return "error: out of memory\n  → try a smaller --index-type, see `rag docs indexing`", 6
    if isinstance(error, OSError) and error.filename:
        hint = "check the path, what lies there and its permissions; --debug shows what needed it"
        return (
            f"error: {error.filename}: {str(error.strerror).lower()}\n  → {hint}",
            ResourceError.exit_code,
        )
    return f"unexpected error: {type(error).__name__}: {error}\n  → add --debug to see where", 70


if __name__ == "__main__":
    main()
