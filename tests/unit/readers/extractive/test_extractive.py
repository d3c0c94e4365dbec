"""Bookkeeping of the extractive reader: exact places, windows, order, confidence, refusals."""

import string
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rag.core.types import Answer, Passage
from readers.extractive.model import SpanModel
from readers.extractive.ranking import QuestionRanker
from readers.extractive.reader import ExtractiveReader
from tests.support.reading import read_lists, read_one, with_settings
from tests.tiny_reader import SPECIAL, WORDS, tiny_tokenizer
from tests.unit.readers.conftest import SMALL

SHORT = Passage("1", "Tower", "The  Tower (1889) is 324 meters high, in the city.")
OTHER = Passage("2", "Bridge", "A bridge was built near the river in 1901.")
LONG = Passage("3", "", " ".join(f"river{n} bridge" for n in range(60)))
ACCENTS = Passage("4", "Ünïcode", "Die Straße — naïve café, 5 × 7 cm. Ωmega")


def shown(answer: Answer) -> str:
    return answer.evidence.text[answer.evidence.start : answer.evidence.end]


def test_answers_are_exact_slices_of_the_text_whose_scores_fall(reader: ExtractiveReader) -> None:
    passages = [SHORT, OTHER, LONG, ACCENTS]
    results = read_lists(
        reader,
        ["how many meters?", "when?"],
        [passages, passages[::-1]],
        [[4, 3, 2, 1]] * 2,
        n_best=20,
    )
    for order, result in zip((passages, passages[::-1]), results, strict=True):
        assert len(result.answers) > 4
        for answer in result.answers:
            assert shown(answer) == answer.text != ""
            assert answer.evidence.text in [passage.text for passage in order]
        for values in ([a.score for a in result.answers], [a.confidence for a in result.answers]):
            assert values == sorted(values, reverse=True)
        assert sum(values) + result.no_answer_confidence == pytest.approx(1.0, abs=1e-6)


def test_answers_begin_with_a_sign_where_tokens_begin_with_a_blank(
    reader: ExtractiveReader,
) -> None:
    """SentencePiece's tokens, as DeBERTa-v3 has them: " meters" is one, and so is a second
    blank.
    """
    signs = ("\u2581", *string.ascii_lowercase, *string.digits, *".,()")
    pieces = [*SPECIAL, *("\u2581" + word for word in WORDS), *signs]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=1))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = (
        tiny_tokenizer().backend_tokenizer.post_processor
    )  # has the same numbers
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    same = ExtractiveReader(reader.model, fast, reader.settings)
    result = read_one(same, "where?", [SHORT, OTHER], [2.0, 1.0], n_best=40)
    assert len(result.answers) > 2
    for answer in result.answers:
        assert answer.text == answer.text.strip() != ""
        assert shown(answer) == answer.text


def test_long_passages_are_read_to_their_end(reader: ExtractiveReader) -> None:
    text = LONG.text + " 777."
    rows = reader.score(["how many?"], [[Passage("x", "", text), OTHER]])
    scores = rows.scores
    *windows, _ = rows.rows
    assert len(windows) > 3
    seen = set()
    for row in windows:
        seen.update(range(row.first_token, row.first_token + row.text_to - row.text_from))
        assert len(row.ids) <= reader.settings.max_tokens
    assert seen == set(range(int(rows.texts.lengths[0])))
    *margins, other = (scores.spans[:, 0] - scores.nulls).astype(
        float
    )  # a passage has its best window's
    ranked = QuestionRanker(rows, 0, [1.0, 0.0], reader.settings).rank(np.arange(len(rows.rows)))
    assert ranked.features.margin == pytest.approx(
        (max(margins), other)[ranked.answers[0].passage_index]
    )


def test_nothing_to_read_means_no_answer(reader: ExtractiveReader) -> None:
    empty = [Passage("e", "Title", ""), Passage("f", "", "   ")]
    results = read_lists(
        reader, ["where?", "when?", "who?"], [[], empty, [SHORT]], [[], [2.0, 1.0], [1.0]]
    )
    assert [len(result.answers) > 0 for result in results] == [False, False, True]
    assert [result.no_answer_confidence for result in results[:2]] == [1.0, 1.0]
    assert read_lists(reader, [], [], []) == []


def test_retrieval_weight_prefers_the_passage_ranked_first(reader: ExtractiveReader) -> None:
    heavy = with_settings(reader, retrieval_weight=1e4)
    for best, scores in ((SHORT, [1.0, 0.0]), (OTHER, [0.0, 1.0])):
        result = read_one(heavy, "where?", [SHORT, OTHER], scores, n_best=1)
        assert result.answers[0].evidence.passage_id == best.id


def test_yes_and_no_have_a_passage_but_no_place(encoder_folder: Path) -> None:
    model = SpanModel.from_encoder(encoder_folder, seed=3)
    model.add_passage_head(seed=1)
    assert model.passage_head is not None
    with torch.no_grad():
        model.passage_head.bias.copy_(torch.tensor([0.0, -90.0, 50.0]))
    reader = ExtractiveReader(model, tiny_tokenizer(), SMALL.replaced(answer_types=True))
    result = read_one(reader, "was it built?", [SHORT, OTHER], n_best=20)
    first, *others = result.answers
    assert (first.text, first.evidence.start, first.evidence.end) == ("no", None, None)
    words = reader.score(["was it built?"], [[SHORT, OTHER]]).scores.words[:, 1]
    assert first.score == pytest.approx(float(words.max()), abs=1e-4)
    assert first.evidence.passage_id == [SHORT, OTHER][int(words.argmax())].id
    assert others[0].evidence.start is not None
    assert result.answers[-1].text == "yes"
    other = read_one(reader, "when was it built?", [SHORT, OTHER], n_best=20)
    assert all(answer.evidence.start is not None for answer in other.answers)
