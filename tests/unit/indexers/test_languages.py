"""Words of BM25 in languages other than English, and what an index remembers of its language."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import rag
from indexers.index import Index
from indexers.java import start_java
from indexers.lucene import LuceneIndex, build_bm25
from indexers.manifest import Manifest
from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from rag.core.types import Passage
from rag.data.languages import ANALYZERS, detect_language
from tests.commands import run_successfully

# language: a passage, and a question that has other forms of its words.
FORMS = {
    "de": ("Die Häuser am Fluss wurden gebaut.", "Welches Haus?"),
    "fr": ("Les montagnes de l'Autriche", "montagne autriche"),
    "el": ("Οι ποταμοί της Ευρώπης", "ποταμός"),
    "ru": ("Реки Европы текут к морю", "река"),
    "pl": ("Rzeki płyną do morza", "rzeka"),
    "vi": ("Sông Danube chảy qua Viên", "danube"),
    "zh": ("多瑙河发源于德国黑森林。", "多瑙河在哪里？"),
    "ja": ("ドナウ川は黒い森に源を発する。", "ドナウ川"),
    "th": ("แม่น้ำดานูบไหลผ่านเวียนนา", "แม่น้ำ"),
}


@pytest.mark.parametrize("language", FORMS)
def test_forms_of_a_word_are_found_with_a_selection_too(language: str, tmp_path: Path) -> None:
    text, question = FORMS[language]
    with writing_passages(tmp_path / "passages") as writer:
        writer.add_many([Passage("a", "", text), Passage("b", "", "Nothing but English")])
    store = PassageStore(tmp_path / "passages")
    info = build_bm25(store, tmp_path / "bm25", language=language)
    index = LuceneIndex(tmp_path / "bm25", info)
    assert info.language == language
    assert [row for row, _ in index.search([question], 5)[0]] == [0]
    index.close()


def test_every_analyser_is_in_the_jar() -> None:
    find_class = start_java()
    for name in set(ANALYZERS.values()):
        assert str(find_class(name)().getClass().getName()) == name


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": "1", "text": "Die Häuser am Fluss."}, {"id": "2", "text": "Ein Berg der Alpen."}]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_an_index_keeps_its_language(corpus: Path, tmp_path: Path) -> None:
    place = tmp_path / "index"
    rag.index(corpus, place, retriever="bm25", language="de", threads=1)
    with corpus.open("a") as stream:
        stream.write('\n{"id": "3", "text": "Viele Flüsse fließen ins Meer."}')
    rag.update(place, corpus)
    with Index.open(place) as index:
        assert index.language == "de"
        assert index.lucene is not None
        assert [row for row, _ in index.lucene.search(["Fluß"], 5)[0]] == [0, 2]
    english = tmp_path / "english"
    rag.index(corpus, english, retriever="bm25", threads=1)
    manifest = Manifest.read(english)
    assert manifest.language == "en"
    assert manifest.stage("bm25").inputs.keys() == {"passages", "k1", "b"}


@pytest.mark.parametrize(
    ("labels", "language", "words"),
    [
        (["de", "de", "en"], "de", "language: de"),
        (["wuu", "zh", "en"], "zh", "language: zh"),
        (["sw"] * 3, "en", "of no language that is known here"),
        (["de", "fr", "es"], "en", "of no language that is known here"),
    ],
)
def test_the_language_of_most_letters_counts(
    labels: list[str],
    language: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = iter(labels)
    loaded = SimpleNamespace(classify=lambda text: (next(found), -1.0))
    detector = ModuleType("langid")
    detector.MODEL_FILE = "model"  # type: ignore[attr-defined]
    detector.LanguageIdentifier = SimpleNamespace(from_model_file=lambda file: loaded)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "py3langid", ModuleType("py3langid"))
    monkeypatch.setitem(sys.modules, "py3langid.langid", detector)
    with caplog.at_level("INFO"):
        assert detect_language(["word " * 50] * 3) == language
    assert words in caplog.text


def test_the_detector_finds_the_language_of_a_corpus(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    text = "Die Donau entspringt im Schwarzwald und fließt durch viele Länder ins Schwarze Meer. "
    corpus.write_text(json.dumps({"id": "1", "text": text * 5}))
    place = tmp_path / "index"
    build = ("index", corpus, "--retriever", "bm25", "--language", "auto", "--out", place)
    assert "language: de" in run_successfully(*build)
    assert Manifest.read(place).language == "de"
