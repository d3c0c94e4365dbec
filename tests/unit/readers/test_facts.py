"""Supporting facts by the words, titles and answers of the passages that were read."""

import numpy as np
import pytest

from rag.config import load_config
from rag.core.errors import ConfigError
from readers.facts import FactPassage, FactSettings, choose_facts, find_signs

QUESTION = "Which country is the director of Silent Harbour from?"
FILM = FactPassage(
    "Silent Harbour (film)", ["It is old.", "Silent Harbour is a film directed by Ada Moss."], score=3.0
)
PERSON = FactPassage("Ada Moss", ["Ada Moss is a director from Norway.", "She paints."], 1.0, 0.9, 0)
NOISE = FactPassage("Harbour", ["A harbour is a place for ships.", "Some are busy."], score=2.0)


def test_the_pair_that_names_each_other_is_chosen() -> None:
    signs = find_signs(QUESTION, [FILM, NOISE, PERSON])
    assert signs.links.tolist() == [[False, True, True], [True, False, False], [True, False, False]]
    assert signs.passages[:, 2].tolist() == [1.0, 1.0, 0.0]  # titles in the question
    assert signs.passages[:, 0].tolist() == [1.0, 0.5, 0.0]
    assert choose_facts(signs) == [(0, 1), (2, 0)]


def test_the_pair_that_a_retriever_took_for_a_path_is_preferred() -> None:
    passages = [FactPassage(name, ["It is old."], 1.0) for name in "ABC"]
    signs = find_signs(QUESTION, passages, [[0, 2], [1, 2], [2, 1]])
    assert signs.ranks.round(2).tolist() == [[1.39, 1.39, 0.0], [1.39, 1.39, 0.69], [0.0, 0.69, 1.39]]
    assert choose_facts(signs) == [(0, 0), (2, 0)]
    assert choose_facts(signs, FactSettings(path=0.0)) == [(0, 0), (1, 0)]


def test_coverage_is_a_share_of_the_rare_words() -> None:
    signs = find_signs(QUESTION, [FILM, NOISE, PERSON])
    assert np.allclose(signs.coverage, signs.coverage.T)
    assert ((signs.coverage >= 0) & (signs.coverage <= 1)).all()
    assert (signs.coverage + 1e-12 >= np.diag(signs.coverage)[:, None]).all()  # two never hold less than one


def test_a_low_threshold_takes_more_sentences() -> None:
    signs = find_signs(QUESTION, [FILM, PERSON])
    assert len(choose_facts(signs, FactSettings(threshold=9.0))) == 2
    assert choose_facts(signs, FactSettings(threshold=0.0)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_few_and_odd_passages() -> None:
    assert choose_facts(find_signs(QUESTION, [])) == []
    assert choose_facts(find_signs(QUESTION, [PERSON])) == [(0, 0)]
    assert choose_facts(find_signs(QUESTION, [FactPassage("", [" ", ""], 1.0)])) == []
    twice = [FILM, FactPassage(FILM.title, FILM.sentences, 2.0)]
    assert choose_facts(find_signs(QUESTION, twice)) == [(0, 1)]  # parts of one document are no pair
    assert choose_facts(find_signs("?", [FILM, PERSON])) != []


def test_a_blank_sentence_keeps_its_number() -> None:
    signs = find_signs("Who is Ada Moss?", [FactPassage("Ada Moss", ["", "Ada Moss paints."], 1.0)])
    assert choose_facts(signs) == [(0, 1)]


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="threshhold"):
        load_config(FactSettings, overrides={"threshhold": 1})
