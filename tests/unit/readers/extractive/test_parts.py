"""Small parts of the reader: candidates, confidence, calibration, int8, layout, manifest,
loading.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rag.core.errors import ConfigError, DataError
from rag.runtime.hardware import precisions
from readers.confidence import Span, fit_calibration
from readers.extractive.files import (
    WORD_EMBEDDINGS,
    load_int8,
    load_parts,
    quantize,
    rounded,
    save_int8,
)
from readers.extractive.model import SpanModel
from readers.extractive.ranking import distinct
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.config import TrainingSet
from readers.extractive.training.data import read_set
from readers.extractive.training.finish import add_ranges, export_int8
from readers.manifest import Calibration
from tests.support.messages import refusal
from tests.tiny_reader import tiny_reader, tiny_squad, tiny_tokenizer


def pick(*spans: tuple[int, int, int, str, float]) -> list[Span]:
    return distinct(
        [Span(text, score, p, (a, b)) for p, a, b, text, score in spans], ReaderSettings()
    )


def test_equal_texts_overlaps_and_words_without_content_are_dropped() -> None:
    answers = pick(
        (0, 0, 5, "Paris", 5.0),
        (1, 3, 9, "paris.", 4.0),
        (0, 2, 9, "ris is", 3.0),
        (1, 20, 21, "|", 2.0),
        (0, 9, 12, "Rom", 1.0),
        (0, 13, 16, "The", 0.9),
        (1, 30, 32, "IT", 0.8),
        (1, 40, 41, "#", 0.7),
    )
    assert [answer.text for answer in answers] == ["Paris", "Rom", "IT", "#"]


def test_calibration_finds_the_temperature_that_made_the_data() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(4000, 5)) * 2
    everything = np.concatenate([logits, np.full((4000, 1), 0.7)], axis=1)
    chances = np.exp(everything) / np.exp(everything).sum(axis=1, keepdims=True)
    outcome = (draw.random((4000, 1)) > chances.cumsum(axis=1)).sum(axis=1)
    correct = np.arange(5)[None, :] == outcome[:, None]
    fitted = fit_calibration(logits * 3.0, correct, np.zeros(4000), np.ones(4000))
    assert fitted.temperature == pytest.approx(3.0, rel=0.1)
    assert fitted.null_bias == pytest.approx(0.7, abs=0.15)
    assert fitted.questions == 4000
    with refusal(DataError):
        fit_calibration(logits * np.nan, correct, np.zeros(4000), np.ones(4000))


def test_int8_error_is_at_most_half_a_step(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    state = {
        "a": torch.randn(30, 20, generator=draw),
        "b": torch.randn(7, generator=draw),
        "c": torch.zeros(4, 4),
    }
    save_int8({**state, "kept": state["a"]}, tmp_path / "w.safetensors", keep=["kept"])
    before = (tmp_path / "w.safetensors").read_bytes()
    save_int8({**state, "kept": state["a"]}, tmp_path / "w.safetensors", keep=["kept"])
    assert (tmp_path / "w.safetensors").read_bytes() == before
    loaded = load_int8(tmp_path / "w.safetensors")
    assert set(loaded) == {"a", "b", "c", "kept"}
    assert torch.equal(loaded["b"], state["b"])
    assert torch.equal(loaded["kept"], state["a"])
    assert torch.equal(loaded["c"], state["c"])
    step = quantize(state["a"])[1][:, None]
    assert ((loaded["a"] - state["a"]).abs() <= step / 2 + 1e-7).all()
    assert torch.equal(rounded(state["a"]), loaded["a"])


def test_export_loads_back(tmp_path: Path, encoder_folder: Path) -> None:
    model = SpanModel.from_encoder(encoder_folder, seed=1)
    settings = ReaderSettings(max_tokens=64, question_tokens=24, title_tokens=8)
    calibration = Calibration(temperature=1.5, null_bias=-0.5, questions=9)
    options: Any = {"name": "tiny", "settings": settings, "calibration": calibration}
    export_int8(tmp_path, model, model.state_dict(), tiny_tokenizer(), **options)
    reader = ExtractiveReader.load(tmp_path, precision="fp32", spans_per_window=3)
    assert reader.settings == settings.model_copy(update={"spans_per_window": 3})
    assert reader.calibration == calibration


def test_word_embeddings_that_are_installed_are_not_stored_again(
    tmp_path: Path, encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SpanModel.from_encoder(encoder_folder, seed=1)
    words = model.state_dict()[WORD_EMBEDDINGS].clone()
    for module in ("readers.extractive.files", "readers.extractive.training.finish"):
        monkeypatch.setattr(f"{module}.embedded_word_embeddings", words.clone)
    step = quantize(words)[1][:, None]
    trained = words.clone()
    trained[7, 3] += step[7, 0]
    # such as the mean of two readers, and another encoder's
    for changed, name, expected in (
        (words + 0.3 * step, "all-MiniLM-L6-v2", words),
        (trained, None, trained),
    ):
        folder = tmp_path / str(name)
        weights = {**model.state_dict(), WORD_EMBEDDINGS: changed}
        export_int8(
            folder, model, weights, tiny_tokenizer(), name="tiny", settings=ReaderSettings()
        )
        parts = load_parts(folder)
        assert parts.manifest.word_embeddings == name
        assert (WORD_EMBEDDINGS in load_int8(folder / parts.manifest.weights_file)) == (
            name is None
        )
        assert torch.equal(parts.model.state_dict()[WORD_EMBEDDINGS], rounded(expected))


def test_int8_inference_needs_ranges_which_are_checked(tmp_path: Path) -> None:
    folder = tiny_reader(tmp_path)
    with refusal(ConfigError):
        ExtractiveReader.load(folder, precision="int8")
    [first, *rest] = read_set(TrainingSet(questions=tiny_squad(tmp_path / "squad.json", 4, 0)))
    assert add_ranges(folder, [first, *rest])
    if "int8" in precisions():
        reader = ExtractiveReader.load(folder, precision="int8")
        exact = ExtractiveReader.load(folder, precision="fp32")
        texts = [example.candidates[0].passage for example in rest]
        together = reader.score([first.question], [texts]).scores
        expected = exact.score([first.question], [texts]).scores
        np.testing.assert_allclose(together.nulls, expected.nulls, atol=0.2)
        for place in (0, 3, 9):
            alone = reader.score([first.question], [texts[place : place + 1]]).scores
            np.testing.assert_allclose(alone.spans[0], together.spans[place], atol=1e-2)
