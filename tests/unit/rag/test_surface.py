"""What users build on: the names of the package, and what the README shows."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import rag
from rag.cli.main import COMMANDS
from tests.support.processes import run_python

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_public_names_are_pinned() -> None:
    assert rag.__all__ == [
        "Answer",
        "AnswerSet",
        "Evidence",
        "EvidencePath",
        "Fusion",
        "Hit",
        "LanguageModel",
        "MultiHop",
        "Passage",
        "Pipeline",
        "Question",
        "RagError",
        "Rerank",
        "ServedModel",
        "Verdict",
        "__version__",
        "adapt",
        "compare",
        "evaluate",
        "index",
        "load_verifier",
        "mine",
        "retrieve",
        "train",
        "train_rounds",
        "update",
    ]
    assert all(getattr(rag, name) is not None for name in rag.__all__)


@pytest.mark.parametrize("code", ["import rag; dir(rag)", "import rag.recipe"])
def test_importing_it_imports_nothing_heavy(code: str) -> None:
    imported = "import sys; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    assert run_python(f"{code}\n{imported}") == "set()\n"


def test_commands_are_pinned() -> None:
    assert sorted(COMMANDS) == [
        "adapt",
        "ask",
        "bench",
        "compare",
        "demo",
        "docs",
        "doctor",
        "evaluate",
        "index",
        "inspect",
        "mcp",
        "mine",
        "plan",
        "questions",
        "retrieve",
        "rights",
        "rounds",
        "score",
        "serve",
        "train",
        "tune",
        "verify",
    ]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", _blocks("python"))
def test_python_of_the_readme_calls_what_there_is(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "rag"
        ):
            assert node.attr in rag.__all__


def test_readme_stays_short() -> None:
    words = [
        word for word in README.split() if any(map(str.isalnum, word))
    ]  # not the bars of tables
    assert len(words) <= 1500


def test_version_is_that_of_the_newest_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    released = re.findall(
        r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rag.__version__ == project["version"] == released[0]
