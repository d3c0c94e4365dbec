import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from indexers.lucene import Bm25Info, LuceneIndex, build_bm25
from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from rag.core.errors import ArtifactError
from rag.core.types import Passage
from tests.support.messages import refusal
from tests.support.processes import run_python, with_packages

TEXTS = [
    ("Rivers", "the danube flows through vienna and budapest"),
    ("", "vienna lies on the danube"),
    ("Empty", ""),
    ("", " "),
    ("Mountains", "the matterhorn is a mountain of the alps"),
    *[("", "a tied passage about tulips") for _ in range(30)],
]

INFO = Bm25Info(k1=0.9, b=0.4, rows=len(TEXTS), documents=len(TEXTS) - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bm25")
    with writing_passages(place / "passages") as writer:
        writer.add_many(Passage(f"p{row}", title, text) for row, (title, text) in enumerate(TEXTS))
    build_bm25(PassageStore(place / "passages"), place / "bm25")
    return place / "bm25"


def test_words_of_titles_and_texts_are_found(folder: Path) -> None:
    index = LuceneIndex(folder, INFO)
    rivers, mountain, stem = index.search(["river vienna", "matterhorn", "mountains flowing"], 5)
    assert [row for row, _ in rivers] == [0, 1]
    assert [row for row, _ in mountain] == [4]
    assert {row for row, _ in stem} == {0, 4}


def test_control_characters_are_no_words(tmp_path: Path) -> None:
    texts = ["text", "\x1a", "\x08\n\x7f", "\u200b", "\u3000", "\x01"]
    with writing_passages(tmp_path / "passages") as writer:
        writer.add_many(Passage(f"p{row}", "", text) for row, text in enumerate(texts))
    info = build_bm25(PassageStore(tmp_path / "passages"), tmp_path / "bm25")
    assert info.documents == 3  # "\x7f" and the space without width are more than the space
    assert [row for row, _ in LuceneIndex(tmp_path / "bm25", info).search(["text"], 5)[0]] == [0]


def test_scores_follow_the_formula(folder: Path) -> None:
    index = LuceneIndex(folder, INFO)
    (row, score), *rest = index.search(["matterhorn"], 3)[0]
    assert (row, rest) == (4, [])
    n, df, k1, b = index.documents, 1, 0.9, 0.4
    # Lengths after stop words: "Mountains matterhorn mountain alps" and so on.
    lengths = [6, 3, 1, 4, *[4] * 30]
    average = sum(lengths) / len(lengths)
    idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
    assert score == pytest.approx(idf / (1 + k1 * (1 - b + b * 4 / average)), rel=2e-2)


def test_odd_queries_find_nothing_or_something_but_never_fail(folder: Path) -> None:
    index = LuceneIndex(folder, INFO)
    odd = ["", "   ", "the of", "\x00", "\ud800", "???", 'AND OR ( " ] ^ ~ vienna', "w-" * 9000]
    odd.append("vienna " * 3000)
    result = index.search(odd, 3)
    assert [bool(hits) for hits in result] == [False] * 6 + [True, False, True]
    assert index.search([], 3) == []
    assert len(index.search(["vienna"], 10_000)[0]) == 2


def test_missing_and_damaged_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    for path in (tmp_path / "copy/lucene").iterdir():
        path.write_bytes(path.read_bytes()[:10])
    with refusal(ArtifactError):
        LuceneIndex(tmp_path / "copy", INFO)


def test_nothing_heavy_is_imported_and_nothing_printed(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from indexers.lucene import Bm25Info, LuceneIndex;"
        f"index = LuceneIndex(Path({str(folder)!r}), Bm25Info(**{INFO.model_dump()}));"
        "assert index.search(['vienna'], 1)[0][0][0] in (0, 1);"
        "assert not {'torch', 'transformers', 'openai', 'onnxruntime'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_java_takes_any_path_in_every_locale(locale: str) -> None:
    program = """
from indexers.java import start_java
print(start_java()("java.io.File")(chr(252)).toPath().toString() == chr(252))
"""
    assert run_python(program, env={**with_packages(), "LC_ALL": locale}) == "True\n"


def test_a_relative_folder_is_that_of_the_working_directory_of_now(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Java runs, in another working directory
    expected = LuceneIndex(folder, INFO).search(["danube"], 3)
    monkeypatch.chdir(tmp_path)
    build_bm25(PassageStore(folder.parent / "passages"), "bm25")
    assert LuceneIndex("bm25", INFO).search(["danube"], 3) == expected
