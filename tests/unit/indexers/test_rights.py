"""Rights of documents: where they come from, the file that holds them, and what of it may fail."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rag
from indexers.index import Index
from indexers.index_writer import write_index
from indexers.rights import Rights, RightsError, change_rights, read_rights, rights_version
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError
from rag.core.types import Groups, Passage
from rag.data.files.rows import write_json_lines
from rag.data.filters import FilterError, parse_filter
from rag.data.metadata import groups_of
from rag.pipeline import Pipeline
from serve.run import bind
from tests.commands import run_command
from tests.support.files import index_files, write_files
from tests.support.messages import refusal

BM25 = BuildSettings(retriever="bm25")
HR = frozenset({"hr"})


def made(place: Path, **documents: Any) -> Path:
    """An index of one passage per document, whose metadata are given by id."""
    passages = [
        Passage(id, "", f"word of {id}", metadata=tuple(metadata.items()))
        for id, metadata in documents.items()
    ]
    write_index(place, passages, settings=BM25)
    return place


def seen(index: Path, groups: Groups | None = None) -> list[str]:
    """Ids that people of these groups find."""
    with Pipeline.open(index, reader=False) as pipeline:
        searched = pipeline if groups is None else pipeline.for_groups(groups)
        return sorted(hit.passage_id for hit, _ in searched.retrieve("word", 100))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hr", {"hr"}),
        (" hr , legal", {"hr", "legal"}),
        (["CN=a,OU=b", "hr", "hr"], {"CN=a,OU=b", "hr"}),
        ([str(n) for n in range(10_000)], {str(n) for n in range(10_000)}),
        *((bad, None) for bad in ("*", ["hr", "*"], "", [], ",", 3, {"hr": 1}, [["hr"]], "a\nb")),
        *((bad, None) for bad in ("x" * 501, [str(n) for n in range(10_001)], "h\ud800")),
    ],
)
def test_groups_are_names_and_never_a_star(value: Any, expected: set[str] | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="groups"):
            groups_of(value)
    else:
        assert groups_of(value) == expected


@pytest.mark.parametrize(
    "stated",
    [
        {"groups": ["hr"]},
        {"metadata": {"groups": ["hr"]}},
        {"groups": "hr", "metadata": {"groups": "all", "year": 2020}},
    ],
)
def test_rows_have_the_groups_that_they_state(stated: dict[str, Any]) -> None:
    rows = [{"text": "a word", **stated}]
    with Pipeline.from_texts(rows, retriever="bm25", reader=False) as pipeline:
        people = (HR, frozenset({"all"}), frozenset[str]())
        n_readable = [pipeline.for_groups(groups).n_passages for groups in people]
    assert n_readable == [1, 0, 0]


FILES = {
    "open.md": "# A\n\nword open.md\n",
    "hr/pay.md": "# A\n\nword hr/pay.md\n",
    "hr/own.md": "---\ngroups: [legal, board]\n---\n# B\n\nword own\n",
    "hr/board/plan.md": "# A\n\nword hr/board/plan.md\n",
    "hr/.rights": "# people\nhr\n",
    "hr/board/.rights": "board\n",
}


def test_files_have_the_groups_of_their_front_matter_or_of_the_nearest_folder(
    tmp_path: Path,
) -> None:
    corpus, index = index_files(tmp_path, FILES)
    rights = read_rights(index)[0]
    stated = {"hr/pay.md": ("hr",), "hr/board/plan.md": ("board",), "hr/own.md": ("board", "legal")}
    assert {id: rights.of(id) for id in stated} == stated
    assert rights.of("open.md") is None
    assert len(seen(index)) == 4
    with Pipeline.open(index, reader=False) as pipeline:
        everything = pipeline.retrieve("word", 10)
        assert not any("groups" in dict(passage.metadata) for _, passage in everything)
        assert not any("legal" in passage.text for _, passage in everything)
    # An update reads the folders' files anew, though no document has changed.
    (corpus / "hr" / ".rights").write_text("staff\n")
    (corpus / "hr" / "board" / ".rights").unlink()
    assert not rag.update(index, corpus).is_changed
    rights = read_rights(index)[0]
    assert [rights.of(id) for id in stated] == [("staff",), ("staff",), ("board", "legal")]
    # What is stated by hand comes first, and what is gone keeps its groups.
    change_rights(index, lambda before: before.stating({"hr/pay.md": None}))
    (corpus / "hr" / "own.md").unlink()
    rag.update(index, corpus)
    rights = read_rights(index)[0]
    assert [rights.of(id) for id in stated] == [None, ("staff",), ("board", "legal")]


def test_columns_and_metadata_name_groups(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "text": "word a", "groups": "hr"},
        {"id": "b", "text": "word b", "groups": ["hr", "board"], "year": 3},
        {"id": "c", "text": "word c", "metadata": {"groups": ["board"]}},
        {"id": "d", "text": "word d", "groups": []},
    ]
    write_json_lines(tmp_path / "rows.jsonl", rows)
    rag.index(tmp_path / "rows.jsonl", tmp_path / "index", retriever="bm25", metadata=["year"])
    stated = {"a": ("hr",), "b": ("board", "hr"), "c": ("board",)}
    assert read_rights(tmp_path / "index")[0].stated == stated


def test_rights_that_are_taken_over_open_nothing() -> None:
    present = Rights(stated={"a": ("hr",)}, folders={"b": ("board",)})
    merged = present.over(Rights(stated={"a": None, "b": None, "c": ("it",)}))
    assert list(map(merged.of, "abcd")) == [("hr",), ("board",), ("it",), None]


def test_what_is_made_of_a_pipeline_for_a_person_is_for_that_person(tmp_path: Path) -> None:
    class Special(Pipeline):
        """A pipeline of a user."""

    def ids(searched: Pipeline) -> list[str]:
        return sorted(hit.passage_id for hit, _ in searched.retrieve("word"))

    index = made(tmp_path / "index", a={"groups": ("hr",)}, b={"groups": ("board",)}, c={})
    with Special.open(index, reader=False) as pipeline:
        pipeline.shelf = "files"
        with pipeline.for_groups(HR) as person:
            assert ids(person) == ids(person.for_groups(HR | {"board"})) == ["a", "c"]
            assert ids(person.for_groups(frozenset({"board"}))) == ["c"]
            assert ids(person.without_promises()) == ["a", "c"]
            moved = person.with_index(Index.open(index))
        assert (type(moved), moved.shelf, ids(moved)) == (Special, "files", ["a", "c"])
        moved.close()
        with refusal(ConfigError):
            moved.retrieve("word")
        assert ids(pipeline) == ["a", "b", "c"]
        assert ids(person) == ["a", "c"]
    with refusal(ConfigError):
        person.retrieve("word")


def test_a_document_that_comes_again_without_groups_keeps_them(tmp_path: Path) -> None:
    index = made(tmp_path / "index", a={"groups": ("hr",)}, b={})
    write_index(index, [Passage("a", "", "word new")], settings=BM25, overwrite=True)
    assert seen(index, frozenset()) == []
    write_index(tmp_path / "other", None, settings=BM25, start_from=Index.open(index))
    assert seen(tmp_path / "other", frozenset()) == []
    assert seen(tmp_path / "other", HR) == ["a"]


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "newer": lambda file: file.write_bytes(file.read_bytes().replace(b'version":1', b'version":2')),
    "lost": lambda file: file.unlink(),
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "below a file": lambda file: (
        file.unlink(),
        file.parent.rmdir(),
        file.parent.write_bytes(b"x"),
    ),
    "below a broken link": lambda file: (
        file.unlink(),
        file.parent.rmdir(),
        file.parent.symlink_to("nowhere"),
    ),
    "link to itself": lambda file: (file.unlink(), file.symlink_to(file)),
}
# A file whose version stays is read by those who open the index, and a folder that is gone noticed
# by those who saw it.
READ_ONCE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-2]),
    "changed": lambda file: file.write_bytes(file.read_bytes().replace(b"hr", b"xx")),
}
SEEN: dict[str, Callable[[Path], object]] = {
    "lost with its folder": lambda file: (file.unlink(), file.parent.rmdir()),
}
DAMAGES = UNREADABLE | READ_ONCE | SEEN


@pytest.mark.parametrize(
    ("damage", "is_seen"),
    [
        *((name, True) for name in UNREADABLE | SEEN),
        *((name, False) for name in UNREADABLE | READ_ONCE),
    ],
)
def test_rights_that_cannot_be_read_close_the_index(
    tmp_path: Path, damage: str, is_seen: bool
) -> None:
    index = made(tmp_path / "index", a={"groups": ("hr",)}, b={})
    with Pipeline.open(index, reader=False) as pipeline:
        person = pipeline.for_groups(HR)
        if is_seen:
            assert len(person.retrieve("word")) == 2
        DAMAGES[damage](index / "rights" / "rights.jsonl")
        calls = [
            lambda: person.retrieve("word"),
            lambda: person.passage("b"),
            lambda: person.readable,
            lambda: person.retrieve("word", filter={"document": "b"}),
        ]
        for call in calls:
            with refusal(RightsError):
                call()
        assert len(pipeline.retrieve("word")) == 2


def test_a_change_of_rights_holds_for_the_next_search_of_an_open_index(tmp_path: Path) -> None:
    index = made(tmp_path / "index", a={}, b={}, c={})
    with Pipeline.open(index, reader=False) as pipeline:
        person = pipeline.for_groups(HR)
        assert person.readable is None
        versions = {rights_version(index)}
        for groups, expected in ((["board"], "bc"), (["hr"], "abc"), ([], "bc"), (None, "abc")):
            versions.add(change_rights(index, lambda now, to=groups: now.stating({"a": to})))
            found = sorted(hit.passage_id for hit, _ in person.retrieve("word"))
            assert found == list(expected)
        assert len(versions) == 5
        assert "a" not in [hit.passage_id for hit, _ in pipeline.retrieve("nothing")]


def test_filters_tell_nothing_of_what_may_not_be_read(tmp_path: Path) -> None:
    index = made(
        tmp_path / "index",
        a={"groups": ("board",), "salary": "a lot", "year": "secret"},
        b={"year": 3},
    )
    alone = made(tmp_path / "alone", b={"year": 3})
    given = [{"salary": "a lot"}, {"salary": {"gte": 3}}, {"path": "x"}, {"year": {"gte": 2}}]
    for conditions in [*given, {"year": "secret"}, {"document": "a"}]:
        outcomes = []
        for place in (index, alone):
            with Pipeline.open(place, reader=False) as pipeline:
                try:
                    hits = pipeline.for_groups(HR).retrieve("word", filter=conditions)
                    outcomes.append([hit.passage_id for hit, _ in hits])
                except FilterError as error:
                    outcomes.append([str(error)])
        assert outcomes[0] == outcomes[1]
    with Index.open(index) as opened, refusal(FilterError):
        opened.select(parse_filter({"yaer": 1}) or ())


BAD_SOURCES: list[tuple[str, str]] = [
    ("a.md", "---\ngroups: '*'\n---\ntext"),
    ("a.md", "---\ngroups: {a: b}\n---\ntext"),
    ("a.md", "---\ngroups: [[hr]]\n---\ntext"),
    ("a.md", "---\ngroups: [hr\n---\ntext"),
    ("a.md", "---\n&x groups: hr\ngroups: @\n---\ntext"),
    ("rows.jsonl", '{"id": "a", "text": "x", "groups": "*"}'),
    ("rows.jsonl", '{"id": "a", "text": "x", "groups": {"hr": true}}'),
    (".rights", ""),
    (".rights", "*\n"),
    (".rights", "# nobody\n"),
]


@pytest.mark.parametrize(("name", "content"), BAD_SOURCES)
def test_bad_groups_are_refused_where_they_stand(tmp_path: Path, name: str, content: str) -> None:
    files = {name: content}
    if name == ".rights":
        files["a.md"] = "text"
    corpus = write_files(tmp_path / "corpus", files)
    with refusal(DataError):
        rag.index(corpus, tmp_path / "index", retriever="bm25")


def test_the_command_shows_and_changes_rights(tmp_path: Path) -> None:
    _, index = index_files(tmp_path, FILES)
    words = ("rights", index)
    # A name with a comma is shown as one.
    change_rights(index, lambda before: before.stating({"open.md": ["hr, board", "legal"]}))
    assert 'hr/pay.md: hr\nopen.md: "hr, board", legal\n' in run_command(*words).output
    changed = run_command(*words, "hr/", "open.md", "--groups", "x,y", "--json").output
    names = ("open.md", "hr/board/plan.md", "hr/own.md", "hr/pay.md")
    assert json.loads(changed) == {name: ["x", "y"] for name in names}
    assert run_command(*words, "open.md", "--everybody").output == "open.md: everybody\n"
    refused = [
        (["--groups", "x"], "give documents"),
        (["open.md", "--groups", "*"], "cannot be called"),
        (["open.md", "--groups", "x", "--everybody"], "either"),
        (["open.md", "--groups", ""], "either"),
        (["nothing.md", "--everybody"], "no document 'nothing.md'"),
        (["nothing/", "--everybody"], "no document 'nothing/'"),
    ]
    for more, expected in refused:
        ran = run_command(*words, *more)
        assert (ran.exit_code, expected in ran.output) == (2, True), ran.output
    asked = ("ask", "word?", "--index", index, "--json", "--as")
    assert "own.md" not in run_command(*asked, "").output
    assert "own.md" in run_command(*asked, "y").output
    told = f"no document of {index} is for yy; `rag rights {index}` shows groups"
    for groups, is_told in (("y,yy", True), ("y", False), ("", False)):
        assert (told in run_command(*asked, groups).output) == is_told, groups
    with bind("127.0.0.1", 0) as taken:
        serve = ("serve", "--port", taken.getsockname()[1], "--as", "yy,y")
        for more in (("--index", index), ("--shelf", f"a={index}")):
            assert run_command(*serve, *more).err.startswith(told), more
    # A missing index is told alone.
    for words in (("ask", "word?"), ("mcp",), ("serve",)):
        ran = run_command(*words, "--as", "y", "--index", tmp_path / "missing")
        assert ran.err.startswith(f"error: {tmp_path / 'missing'}: no such directory"), words
