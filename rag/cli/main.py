"""Entry point of `rag`: the commands, and what their errors look like."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper

from cyclopts import App, CycloptsError, Group, Parameter

from rag import __version__
from rag.core.errors import RagError, ResourceError, with_hint

_ABOUT = (
    "Open-domain question answering that retrieves: index a corpus, ask with evidence, train, "
    "evaluate."
)
# Command: module, panel of the help, summary.
COMMANDS = {
    "index": (
        "index",
        "Build",
        "Build an index from a corpus: passages, embeddings, FAISS, BM25, manifest.",
    ),
    "plan": ("look", "Build", "State the size of an index before it is built."),
    "rights": (
        "index",
        "Build",
        "Show or change who may read the documents of an index; encodes nothing.",
    ),
    "inspect": ("look", "Build", "Show what is in an index; --verify checks every checksum."),
    "ask": ("ask", "Ask", "Ask a question; prints answers with their evidence."),
    "verify": ("ask", "Ask", "Judge claims by what the index's passages say."),
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
    "tune": ("teach", "Train", "Fit a reader's confidence, and promise an error rate."),
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
# Commands that log what they do.
_LOGGED = ("mine", "score", "adapt", "questions", "rounds")
# Commands that go on where they stopped when they are given again.
_RESUMED = (*_LOGGED, "index", "train", "evaluate")
_UNEXPECTED = 70
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def make_app(words: Sequence[str] = ()) -> App:
    """The command line with all commands, of which the one that the words call is imported."""
    app = App(
        name="rag",
        help=_ABOUT,
        version=f"rag {__version__}",
        help_flags=("--help", "-h"),
        version_flags="--version",
        help_format="plaintext",
        default_parameter=Parameter(allow_repeating=False, negative=()),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    summaries = {name: (panel, about) for name, (_, panel, about) in COMMANDS.items()}

    def load(name: str) -> Callable[..., None] | App:
        module = import_module(f"rag.cli.{COMMANDS[name][0]}")
        if name in ("train", "bench"):
            group: App = module.make_app(words[1:])
            return group
        command: Callable[..., None] = getattr(module, name)
        return command

    add_commands(app, summaries, load, words)
    return app


def add_commands(
    app: App,
    summaries: Mapping[str, tuple[str, str]],
    load: Callable[[str], Callable[..., None] | App],
    words: Sequence[str],
) -> None:
    """Add the commands of a group; only the one that is called is loaded, so that help is fast.

    Args:
        summaries: name → panel of the help, and summary.
        load: name → the command.
        words: the command line after the group's name.
    """
    called = words[0] if words else ""
    panels: dict[str, Group] = {}
    for name, (panel, about) in summaries.items():
        group = panels.setdefault(panel, Group(panel, sort_key=len(panels)))
        if name != called:
            app.command(_not_loaded, name=name, group=group, help=about)
            continue
        command = load(name)
        if isinstance(command, App):
            command.group = group
            app.command(command)
        else:
            app.command(command, name=name, group=group)


def _not_loaded() -> None:
    """Stands for a command that is not the one that is called."""


def main(arguments: list[str] | None = None) -> None:
    """Run `rag`; errors meant for the user become one message and an exit code.

    `--debug` anywhere on the line shows the traceback as well.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    if words[0] in _LOGGED:
        from rag.core.log import setup_logging

        setup_logging("INFO")
    if not sys.stderr.isatty():
        # In a log file they are clutter.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for stream in (sys.stdout, sys.stderr):
        # Answers may have letters that a terminal of an old encoding lacks.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app: App | None = None
    try:
        app = make_app(words)
        app(words, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        if words[0] in _RESUMED:
            print("stopped; the same command continues", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(_BROKEN_PIPE)
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _explain(error, _spelling(app, words))
        print(message, file=sys.stderr)
        sys.exit(code)


def _spelling(app: App | None, words: Sequence[str]) -> Callable[[str], str]:
    """How the called command spells an argument of the function that it calls."""
    options: dict[str, str] = {}
    if app is not None:
        _, called, _ = app.parse_commands(list(words))
        if called[-1].default_command is not None:
            arguments = called[-1].assemble_argument_collection()
            options = {argument.field_info.name: argument.name for argument in arguments}

    def spell(name: str) -> str:
        if name not in options and "set_" in options:
            return f"--set {name}=…"
        return options.get(name, f"--{name.replace('_', '-')}")

    return spell


def _explain(error: Exception, spell: Callable[[str], str]) -> tuple[str, int]:
    """What is said of an error, and the exit code."""
    if isinstance(error, CycloptsError):
        error.verbose = False
        command = " ".join(["rag", *(error.command_chain or ())])
        return f"error: {error}\n  → see `{command} --help`", 2
    if isinstance(error, RagError):
        return f"error: {with_hint(*error.spelled(spell))}", error.exit_code
    if isinstance(error, MemoryError):
        return "error: out of memory\n  → try a smaller --index-type, see `rag docs indexing`", 6
    if isinstance(error, OSError) and error.strerror:
        # There is none where the output goes.
        path = f"{error.filename}: " if error.filename else ""
        hint = "check the path, what lies there and its permissions; --debug shows what needed it"
        found = f"error: {path}{error.strerror.lower()}\n  → {hint}"
        return found, ResourceError.exit_code
    found = f"unexpected error: {type(error).__name__}: {error}\n  → add --debug to see where"
    return found, _UNEXPECTED


if __name__ == "__main__":
    main()
