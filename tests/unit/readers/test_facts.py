"""Supporting facts by the words, titles and answers of the passages that were read."""

from readers.paths import FactPassage, choose_facts

QUESTION = "Which country is the director of Silent Harbour from?"
FILM = FactPassage(
    "Silent Harbour (film)", ["It is old.", "Silent Harbour is a film directed by Ada Moss."], score=3.0
)
PERSON = FactPassage("Ada Moss", ["Ada Moss is a director from Norway.", "She paints."], 1.0, 0.9, 0)
NOISE = FactPassage("Harbour", ["A harbour is a place for ships.", "Some are busy."], score=2.0)


def test_the_pair_that_names_each_other_is_chosen() -> None:
    assert choose_facts(QUESTION, [FILM, NOISE, PERSON]) == [(0, 1), (2, 0)]


def test_the_pair_that_a_retriever_took_for_a_path_is_preferred() -> None:
    passages = [FactPassage(name, ["It is old."], 1.0) for name in "ABC"]
    assert choose_facts(QUESTION, passages, [[0, 2], [1, 2], [2, 1]]) == [(0, 0), (2, 0)]
    assert choose_facts(QUESTION, passages) == [(0, 0), (1, 0)]


def test_few_and_odd_passages() -> None:
    assert choose_facts(QUESTION, []) == []
    assert choose_facts(QUESTION, [PERSON]) == [(0, 0)]
    assert choose_facts(QUESTION, [FactPassage("", [" ", ""], 1.0)]) == []
    twice = [FILM, FactPassage(FILM.title, FILM.sentences, 2.0)]
    assert choose_facts(QUESTION, twice) == [(0, 1)]  # parts of one document are no pair
    assert choose_facts("?", [FILM, PERSON]) != []
    assert choose_facts("Who is Ada Moss?", [FactPassage("Ada Moss", ["", "Ada Moss paints."], 1.0)]) == [
        (0, 1)
    ]
