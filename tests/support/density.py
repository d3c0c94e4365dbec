"""How dense Python code is: tokens, and counts per 10,000 tokens that layout cannot change.

Tokens are those of code: comments, docstrings and line ends are free, and an f-string is one token
on every Python.

    python -m tests.support.density [FOLDER ...]
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

FREE_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LONG_FUNCTION = 60

# What is reported per 10,000 tokens, in the order of the columns.
PER_TOKENS = ("parallel", "conditional", "comprehensions", "nested", "walrus", "comments")


def measure(text: str) -> Counter[str]:
    """Count tokens, constructs and annotations of one module's source.

    >>> counts = measure("a, b = 1, 2  # both\\n")
    >>> counts["tokens"], counts["parallel"], counts["comments"]
    (7, 1, 1)
    """
    tree = ast.parse(text)
    counts = Counter[str]()
    for node in ast.walk(tree):
        _count_constructs(node, counts)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _count_function(node, counts)
    _count_tokens(text, _docstring_lines(tree), counts)
    return counts


def measure_files(files: list[Path]) -> Counter[str]:
    """Sum of `measure` over files."""
    total = Counter[str]()
    for file in files:
        total.update(measure(file.read_text(encoding="utf-8")))
    return total


def per_tokens(counts: Counter[str], name: str) -> float:
    """How often a construct stands in 10,000 tokens."""
    return 10_000 * counts[name] / max(counts["tokens"], 1)


def any_share(counts: Counter[str]) -> float:
    """Percentage of the parameters of public functions whose annotation holds `Any`."""
    return 100 * counts["any parameters"] / max(counts["parameters"], 1)


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, WITH_DOCSTRING) or ast.get_docstring(node, clean=False) is None:
            continue
        docstring = node.body[0]
        assert docstring.end_lineno is not None
        lines.update(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def _count_constructs(node: ast.AST, counts: Counter[str]) -> None:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        counts["parallel"] += any(isinstance(target, ast.Tuple) for target in node.targets)
    counts["conditional"] += isinstance(node, ast.IfExp)
    counts["walrus"] += isinstance(node, ast.NamedExpr)
    if isinstance(node, COMPREHENSIONS):
        counts["comprehensions"] += 1
        inner = any(
            isinstance(child, COMPREHENSIONS) for child in ast.walk(node) if child is not node
        )
        counts["nested"] += inner or len(node.generators) > 1


def _count_function(node: ast.FunctionDef | ast.AsyncFunctionDef, counts: Counter[str]) -> None:
    assert node.end_lineno is not None
    counts["long functions"] += node.end_lineno - node.lineno >= LONG_FUNCTION
    if node.name.startswith("_"):
        return
    counts["any results"] += _holds_any(node.returns)
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [
        argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None
    ]
    for argument in arguments:
        if argument.arg not in ("self", "cls"):
            counts["parameters"] += 1
            counts["any parameters"] += _holds_any(argument.annotation)


def _holds_any(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    return any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))


def _count_tokens(text: str, docstring_lines: set[int], counts: Counter[str]) -> None:
    # Python 3.12 splits an f-string into many tokens, earlier versions read it as one.
    open_f_strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        is_inside = open_f_strings > 0
        if name == "FSTRING_START":
            open_f_strings += 1
        elif name == "FSTRING_END":
            open_f_strings -= 1
        if is_inside:
            continue
        if token.type == tokenize.COMMENT:
            counts["comments"] += 1
            counts["format skips"] += "fmt: skip" in token.string
        if token.type not in FREE_TOKENS and token.start[0] not in docstring_lines:
            counts["tokens"] += 1


def main() -> None:
    """Print a row for each folder."""
    folders = sys.argv[1:] or ["rag", "indexers", "retrievers", "readers", "serve"]
    columns = " ".join(f"{name:>14}" for name in PER_TOKENS)
    print(
        f"{'folder':24} {'tokens':>8} {columns} {'long functions':>14} {'Any %':>6} {'-> Any':>6}"
    )
    for folder in folders:
        counts = measure_files(sorted(Path(folder).rglob("*.py")))
        values = " ".join(f"{per_tokens(counts, name):14.1f}" for name in PER_TOKENS)
        ends = f"{counts['long functions']:14} {any_share(counts):6.1f} {counts['any results']:6}"
        print(f"{folder:24} {counts['tokens']:8} {values} {ends}")


if __name__ == "__main__":
    main()
