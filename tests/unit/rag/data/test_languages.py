import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import readers
from rag.data.languages import LanguageNotices, knows, language_of


@pytest.fixture(scope="module")
def english() -> set[str]:
    """The vocabulary of the reader in the package, that of bert-base-uncased."""
    path = Path(readers.__file__).parent / "weights" / "tokenizer.json"
    return set(json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"])


ASKED = {
    "German": ("Wer hat das Penicillin entdeckt?", "Was ist die Hauptstadt von Ungarn?"),
    "French": ("Où est la tour Eiffel ?", "Quand a été construit le pont ?"),
    "Spanish": ("¿Quién es el autor de la novela?", "¿Cuándo fue la batalla?"),
    "Italian": ("Chi ha scritto la Divina Commedia?",),
    "Portuguese": ("Quem foi o primeiro presidente do Brasil?",),
    "Dutch": ("Wie is de koning van Nederland?", "Wanneer werd het gebouwd?"),
    "Cyrillic": ("Где начинается Дунай?",),
    "Greek": ("Πού πηγάζει ο Δούναβης;",),
    "Arabic": ("من اكتشف البنسلين؟",),
    "Chinese or Japanese": ("多瑙河的源头在哪里？", "ドナウ川はどこから始まりますか"),
    "Hangul": ("다뉴브강은 어디에서 시작됩니까?",),
    "": (
        "Who wrote El Cid de la Mancha?", "Where is the Rio de la Plata?", "capital of France",
        "La Paz altitude",
        "Name the die in which Das Boot was cast", "1984?", "", "Is Paris in France?", "Wer", "Σ of x",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("language", "question"), [(name, q) for name, all in ASKED.items() for q in all])
def test_languages_are_recognised_and_english_is_left_alone(language: str, question: str) -> None:
    assert language_of(question) == language


def test_an_english_vocabulary_knows_none_of_them_and_a_multilingual_one_what_it_holds(
    english: set[str],
) -> None:
    assert not [language for language in ASKED if language and knows(english, language)]
    german = {
        "▁wann",
        "▁warum",
        "▁welche",
        "▁welcher",
        "▁welches",
        "▁woher",
        "▁wohin",
        "▁wurde",
        "▁wurden",
        "▁eine",
    }
    cyrillic = {chr(a) + chr(b) for a in range(0x430, 0x44F) for b in range(0x430, 0x44F)}
    assert knows(english | german, "German")
    assert knows(english | cyrillic, "Cyrillic")
    assert not knows(english | cyrillic, "Greek")
    assert knows({"Ġthe", "Ð°"}, "Cyrillic")  # byte-level: nothing can be stated


def test_the_notice_names_the_models_that_do_not_know_the_language(english: set[str]) -> None:
    tokenizer = SimpleNamespace(get_vocab=lambda: dict.fromkeys(english, 0))
    reader = SimpleNamespace(tokenizer=tokenizer)
    hybrid = SimpleNamespace(
        members=(SimpleNamespace(), SimpleNamespace(encoder=SimpleNamespace(vocabulary=english)))
    )
    both = LanguageNotices({"encoder": hybrid, "reader": reader})
    assert both("Wo beginnt die Donau?") == (
        "the question seems to be in German, which the encoder and the reader do not know"
    )
    assert both("Where does the Danube rise?") == ""
    bm25 = LanguageNotices({"encoder": SimpleNamespace(), "reader": reader})
    assert (
        bm25("Где начинается Дунай?")
        == "the question seems to be in Cyrillic, which the reader does not know"
    )
    assert LanguageNotices({"encoder": SimpleNamespace(), "reader": None})("Где начинается Дунай?") == ""
