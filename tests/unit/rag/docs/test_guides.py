"""The guides: what they link to, what they state about settings, and that the tutorial works as
written.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from tomllib import loads

import pytest

import rag
from rag.docs.pages import START, page_titles
from tests.commands import run_command, run_successfully

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "rag" / "docs"
PAGES = sorted(FOLDER.glob("*.md"))


def _without_code(text: str) -> str:
    return re.sub(
        r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    )


def _links(path: Path) -> list[str]:
    return re.findall(r"\]\((?!http)([^)]+)\)", _without_code(path.read_text(encoding="utf-8")))


def _anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    dead = []
    for link in _links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            dead.append(link)
    assert not dead


def test_every_page_is_linked_from_the_start_page() -> None:
    linked = {link.partition("#")[0] for link in _links(FOLDER / f"{START}.md")}
    assert {path.name for path in PAGES} - {f"{START}.md"} <= linked


def test_pages_and_what_they_link_to_ship_with_the_package() -> None:
    project = loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["rag"]
    needed = {path.resolve() for path in PAGES}
    needed |= {
        (path.parent / link.partition("#")[0]).resolve() for path in PAGES for link in _links(path)
    }
    shipped = [
        path.relative_to(ROOT / "rag").as_posix()
        for path in needed
        if path.suffix in (".md", ".png")
    ]
    assert not [path for path in shipped if not any(fnmatch(path, pattern) for pattern in patterns)]


def _texts_of(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_messages_that_are_explained_are_messages_of_the_program() -> None:
    packages = ("rag", "indexers", "retrievers", "readers", "serve")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    texts = "\n".join(text for path in sources for text in _texts_of(path))
    rows = re.findall(
        r"^\| (.+?) \|", (FOLDER / "troubleshooting.md").read_text(encoding="utf-8"), re.M
    )
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    fragments = [
        part for message in messages for part in re.split(r" ?… ?", message) if len(part) > 3
    ]
    assert len(messages) > 30
    assert not [part for part in fragments if part not in texts]


@pytest.mark.slow
def test_the_site_builds_with_guides_and_public_names(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "properdocs",
        "build",
        "-q",
        "-f",
        ".ci/site.yml",
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in PAGES} <= {
        path.stem for path in (tmp_path / "docs").glob("*.html")
    }
    pages = (tmp_path / "docs" / "api").glob("*.html")
    reference = "".join(path.read_text(encoding="utf-8") for path in pages)
    assert not [
        name for name in rag.__all__ if f'.{name}"' not in reference and name != "__version__"
    ]
    search = (tmp_path / "search" / "main.js").read_text(encoding="utf-8")
    entries, _, script = search.removeprefix("const entries = ").partition(";\n")
    folders = dict.fromkeys(entry["location"].rpartition("/")[0] for entry in json.loads(entries))
    assert [*folders][:: len(folders) - 1] == ["docs", "docs/api"]  # guides first, names last
    assert not re.search(r"fetch|XMLHttp|Worker", script)  # which pages from the disk may not use
    start = (tmp_path / "index.html").read_text(encoding="utf-8")
    for target in re.findall(r'(?:url=|href=")([^"]+)"', start):
        assert (tmp_path / target).is_file()


def test_the_command_lists_and_prints_pages() -> None:
    listed = run_successfully("docs")
    assert all(title in listed for title in page_titles().values())
    page = (FOLDER / "dpr.md").read_text(encoding="utf-8")
    for name in ("dpr", "dpr.md"):
        assert page in run_successfully("docs", name)
    unknown = run_command("docs", "dprr")
    assert unknown.exit_code != 0
    assert " dpr, emdr2, " in unknown.err


def _steps_of_the_tutorial() -> tuple[str, list[list[str]]]:
    """The Python that writes the data, and the words of every command in order."""
    text = (FOLDER / "tutorial.md").read_text(encoding="utf-8")
    [python] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ rag ")]
    return python, [shlex.split(line.removeprefix("$ rag ")) for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python, commands = _steps_of_the_tutorial()
    exec(compile(python, "tutorial.md", "exec"), {})
    shown = {}
    for words in commands:
        shown[words[0]] = run_successfully(*words)
    assert "Basel" in shown["ask"]
    assert re.search(r"^mrr +before +after ", shown["compare"], re.MULTILINE)
    assert (tmp_path / "run" / "encoder").is_dir()


def _figures(text: str) -> set[str]:
    """Figures with their interval, such as 87.9 [86.2, 89.6], without bold type and per cent
    signs.
    """
    text = re.sub(r"\s+", " ", text.replace("*", "").replace(" %", ""))
    return set(re.findall(r"\d+\.\d+ \[\d+\.\d+, \d+\.\d+\]", text))


def test_figures_of_the_guides_are_those_of_the_notes() -> None:
    bench = ROOT / "rag" / "bench"
    measured = {
        figure
        for path in (bench / "RESULTS.md", *(bench / "notes").glob("*.md"))
        for figure in _figures(path.read_text(encoding="utf-8"))
    }
    assert len(measured) > 1000
    for path in (ROOT / "README.md", *PAGES):
        assert _figures(path.read_text(encoding="utf-8")) <= measured, path.name
