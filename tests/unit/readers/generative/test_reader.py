"""The generative reader: layout, evidence, confidence, abstention, and folders that cannot be read
with.
"""

import math
from pathlib import Path

import pytest

from rag.core.types import Passage
from readers.borders import find_span
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorManifest, GeneratorSettings, encode_rows
from readers.open import open_reader
from tests.support.files import change_json
from tests.support.reading import likelihoods_of, read_lists, read_one
from tests.tiny_generator import KINDS, tiny_generator

PASSAGES = [
    Passage("1", "Tower", "the tower is 57 meters high."),
    Passage("2", "River", "the river is near the city."),
    Passage("3", "Nothing", "  "),
]
SCORES = [1.0, 3.0, 2.0]


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_generator(tmp_path_factory.mktemp(request.param), request.param)


def test_answers_come_with_a_passage_and_a_span_only_where_they_stand(folder: Path) -> None:
    reader = open_reader(folder, precision="fp32", beams=3, answer_tokens=6)
    assert isinstance(reader, GenerativeReader)
    results = read_lists(
        reader, ["how many meters?", "where?"], [PASSAGES, PASSAGES[:1]], [SCORES, [1.0]]
    )
    assert len(results) == 2
    for result, passages in zip(results, (PASSAGES, PASSAGES[:1]), strict=True):
        assert result.answers
        assert [a.score for a in result.answers] == sorted(
            (a.score for a in result.answers), reverse=True
        )
        for answer in result.answers:
            evidence = answer.evidence
            assert evidence.passage_id != "3"
            assert 0.0 <= answer.confidence <= 1.0
            if evidence.start is None:
                assert not any(find_span(answer.text, p.text) for p in passages)
            else:
                assert evidence.text[evidence.start : evidence.end] == answer.text
    shown = results[0].to_json()
    assert shown["answers"][0]["evidence"]["passage_id"] in ("1", "2")


def test_the_likelihood_of_an_answer_is_of_all_passages_together(folder: Path) -> None:
    def likely(mode: str, passages: list[Passage], scores: list[float]) -> float:
        reader = GenerativeReader.load(folder, precision="fp32", mode=mode, prior_scale=0.5)
        inputs = (["where?"] * 2, [[], passages], [[], scores], ["no", "the city"])
        of_nothing, result = likelihoods_of(reader, *inputs)
        assert math.isnan(of_nothing)
        return result

    alone = [likely("fid", [PASSAGES[n]], [SCORES[n]]) for n in (0, 1)]
    odds = [math.exp(0.5 * score) for score in SCORES[:2]]
    mixed = sum(o * math.exp(p) for o, p in zip(odds, alone, strict=True)) / sum(odds)
    assert likely("rag-sequence", PASSAGES, SCORES) == pytest.approx(math.log(mixed), rel=1e-4)
    assert likely("rag-token", PASSAGES[:1], SCORES[:1]) == pytest.approx(alone[0], rel=1e-4)


def test_no_answer_competes_by_its_likelihood(folder: Path) -> None:
    inputs = ("where?", PASSAGES, SCORES)
    plain = GenerativeReader.load(folder, precision="fp32", answer_tokens=6)
    unaware = read_one(plain, *inputs)
    assert unaware.no_answer_confidence == 0.0
    assert unaware.answers[0].confidence == pytest.approx(
        math.exp(unaware.answers[0].score), rel=1e-4
    )
    aware = GenerativeReader.load(folder, precision="fp32", answer_tokens=6, no_answer="the river")
    result = read_one(aware, *inputs)
    [null] = likelihoods_of(aware, ["where?"], [PASSAGES], [SCORES], ["the river"])
    odds = math.exp(result.answers[0].score - null)
    assert result.answers[0].confidence / result.no_answer_confidence == pytest.approx(
        odds, rel=1e-3
    )
    answer = unaware.answers[0].text
    silent = GenerativeReader.load(folder, precision="fp32", answer_tokens=6, no_answer=answer)
    assert read_one(silent, *inputs).no_answer_confidence == 1.0


def test_rows_follow_the_template_and_are_cut_at_their_end(tmp_path: Path) -> None:
    """Whatever the checkpoint's tokenizer would cut."""
    tiny_generator(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", truncation_side="left")
    tokenizer = GenerativeReader.load(tmp_path).seq2seq.tokenizer
    settings = GeneratorSettings(
        template="{question} [SEP] {title} [SEP] {text}", passage_tokens=12
    )
    [[row]] = encode_rows(
        tokenizer, settings, ["how many?"], [[Passage("1", "river", "the city " * 30)]]
    )
    shown = " ".join(tokenizer.convert_ids_to_tokens(row))
    assert shown == "[CLS] how many ? [SEP] river [SEP] the city the city [SEP]"
    settings = GeneratorSettings(question_tokens=2)
    [[row]] = encode_rows(tokenizer, settings, ["how many of the bridge?"], [[PASSAGES[1]]])
    assert "how many" in tokenizer.decode(row)
    assert "bridge" not in tokenizer.decode(row)
    with pytest.raises(ValueError, match="expected"):
        GeneratorSettings(template="{query}")


def test_a_manifest_beside_the_checkpoint_is_followed(tmp_path: Path) -> None:
    tiny_generator(tmp_path)
    settings = GeneratorSettings(mode="rag-token", beams=2, no_answer="no", passage_tokens=60)
    GeneratorManifest(name="mine", settings=settings).save(tmp_path)
    reader = open_reader(tmp_path)
    assert isinstance(reader, GenerativeReader)
    assert (reader.settings, reader.name) == (settings, "mine")
