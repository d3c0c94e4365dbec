"""Efforts are chosen by what they lose and cost; what is simulated is what the reader then does."""

from pathlib import Path

import numpy as np
import pytest

from rag.core.types import Passage
from rag.data.examples import Candidate, Example
from readers.calibration import fit_chance
from readers.confidence import answer_signs, confidences, likelihoods
from readers.extractive.fast import FastSpanModel
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.training import calibrate
from readers.extractive.training.efforts import BUDGETS, HeldOut, choose_efforts
from readers.manifest import Calibration, with_overrides
from readers.ranking import CandidateAnswer, Ranked
from tests.tiny_reader import tiny_tokenizer
from tests.unit.readers.conftest import SMALL

Setup = tuple[ExtractiveReader, list[str], list[list[Passage]], list[Example]]


@pytest.fixture
def setup(encoder_folder: Path) -> Setup:
    """A reader, questions, their passages, and what it says at first as the right answers."""
    model = SpanModel.from_encoder(encoder_folder, seed=3)
    model.add_heads(passage=True, skim_layer=1, seed=5)
    settings = with_overrides(SMALL, {"skim_layer": 1, "retrieval_weight": 1.0})
    reader = ExtractiveReader(FastSpanModel(model.eval(), "fp32"), tiny_tokenizer(), settings)
    passages = [Passage(str(n), "City", f"city {n} has {n + 10} meters of river near {n}") for n in range(20)]
    questions = [f"how many meters has city {n}?" for n in range(12)]
    found = [[passages[i] for i in np.random.default_rng(n).permutation(20)] for n in range(12)]
    scores = [[float(-rank) for rank in range(20)]] * 12
    first = [read.answers[0].text for read in reader.read(questions, found, scores)]
    examples = []
    for text, right, own in zip(questions, first, found, strict=True):
        listed = (Candidate(p, "retrieved", score=-float(n), has_answer=True) for n, p in enumerate(own))
        examples.append(Example(text, text, (right,), tuple(listed)))
    return reader, questions, found, examples


def test_chosen_efforts_cost_and_keep_what_they_say(setup: Setup) -> None:
    reader, questions, found, examples = setup
    settings = reader.settings
    scores = [[float(-rank) for rank in range(20)]] * 12
    first = [example.answers[0] for example in examples]
    weights = np.full(12, 1 / 12)
    scored = [reader.score(questions, found)]
    efforts, figures = choose_efforts(
        HeldOut(scored, [examples], weights, settings, reader.calibration, reader.model.depth)
    )
    assert efforts.keys() == BUDGETS.keys()
    full = reader.read(questions, found, scores)
    for name, budget in BUDGETS.items():
        settings_then = with_overrides(settings, {"efforts": efforts, "effort": name})
        less = ExtractiveReader(reader.model, tiny_tokenizer(), settings_then).read(questions, found, scores)
        cost = sum(read.reading["token_layers"] for read in less)
        share = cost / sum(read.reading["token_layers"] for read in full)
        kept = [bool(a.answers) and a.answers[0].text == right for a, right in zip(less, first, strict=True)]
        assert share <= budget
        assert figures[f"token-layers {name}"] == round(100 * share, 1)
        assert figures[f"right answers kept {name}"] == round(100 * float(np.mean(kept)), 2)


def test_efforts_are_chosen_on_the_sets_that_are_named(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _, _, examples = setup
    seen: list[HeldOut] = []
    monkeypatch.setattr(calibrate, "choose_efforts", lambda held: (seen.append(held), ({}, {}))[1])
    calibrate.tune(reader, {"a": examples[:4], "b": examples[4:]}, effort_sets=("a",))
    calibrate.tune(reader, {"a": examples[:4], "b": examples[4:]})
    np.testing.assert_allclose(seen[0].weights, [1 / 4] * 4 + [0] * 8)
    np.testing.assert_allclose(seen[1].weights, [1 / 8] * 4 + [1 / 16] * 8)


def test_the_chances_of_the_first_answer_and_of_none_are_found_and_the_others_share_the_rest() -> None:
    draw = np.random.default_rng(1)
    signs = draw.normal(0, 2, (4000, 2))
    right = draw.random(4000) < 1 / (1 + np.exp(-(0.5 + signs @ np.array([0.3, 0.8]))))
    fitted = fit_chance(signs, right, np.ones(4000))
    np.testing.assert_allclose(fitted, (0.5, 0.3, 0.8), atol=0.12)

    found = Ranked(
        [CandidateAnswer(3, 0, 4, "Oslo", 2.0), *(CandidateAnswer(0, n, n, "x", n) for n in (1, 0))],
        0.5,
        7,
        3,
        -0.5,
        12,
        2.5,
        -3.0,
        -1,
        0.75,
        99,
        1.2,
    )
    plain, none = confidences(found.scores, found.null, Calibration())
    signs = answer_signs(found, plain, none)
    odds = plain[0] / plain[1:].sum(), plain[0] / none
    entropy = -sum(p * np.log(p) for p in [*plain, none])
    np.testing.assert_allclose(
        signs,
        [
            *np.log([*odds, 7, 4, 5]), -0.5, np.log(plain[0] / plain[1]), np.log(12),
            entropy, np.log(2), 2.5, -3.0, -1, 0.75, np.log(100), 0, 1.2,
        ],
    )  # fmt: skip
    first = (0.5, 0.3, 0.8, -0.1, -0.2, -0.3)
    for calibration, seen in ((Calibration(first=first), 5), (Calibration(first=first[:3]), 2)):
        p, rest = likelihoods(found, calibration)
        np.testing.assert_allclose(
            p[0], 1 / (1 + np.exp(-(0.5 + signs[:seen] @ np.array(first[1 : 1 + seen]))))
        )
        np.testing.assert_allclose(p.sum() + rest, 1)
        np.testing.assert_allclose((p[1] / p[2], p[1] / rest), (plain[1] / plain[2], plain[1] / none))
    p, rest = likelihoods(found, Calibration(first=first, none=(-1.0, 0.0, 0.5)))
    np.testing.assert_allclose(rest, (1 - p[0]) / (1 + np.exp(1.0 - 0.5 * signs[1])))
    np.testing.assert_allclose(p.sum() + rest, 1)
    for bias, limit in ((0.1, 1.0), (-0.1, p[0])):  # passages that likelier hold an answer are not refused
        p, rest = likelihoods(found, Calibration(first=(-3.0, 0.0), empty=(bias, 0.0)))
        np.testing.assert_allclose(rest, min((1 - p[0]) / (1 + np.exp(-bias)), p[0] if bias < 0 else limit))
    low, _ = likelihoods(found, Calibration(first=(-5.0, 0.0, 0.0)))
    assert low[1] <= low[0] < 0.01
