"""Presets begin to train on sixty questions of one's own: nothing they hold out or search is too much."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertModel

import rag
from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.config import preset_names
from rag.core.types import Passage
from rag.recipes import RECIPES
from retrievers.encoders.open import load_encoder
from tests.tiny_causal import causal_folder
from tests.tiny_generator import tiny_generator
from tests.tiny_reader import tiny_config, tiny_tokenizer

_MODELS: dict[str, dict[str, Any]] = {  # recipe or preset → settings that stand for its models
    "reranker": {"question_encoder": "bert"},
    "mlm": {"mlm": {"encoder": "bert"}},
    "realm": {"mlm": {"encoder": "bert"}, "masks": "span"},
    "orqa": {"reader": {"encoder": "bert"}},
    "rag": {"reader": {"generator": "bart"}},
    "emdr2": {"reader": {"generator": "bart"}},
    "reader": {"model": {"encoder": "bert"}},
    "static": {"model": {"dim": 32}},
    "generator": {
        "model": "bart",
        "encoder": None,
        "decoder_layers": None,
        "pointer": False,
        "frozen": [],
        "stages": [{"steps": 3, "batch_size": 8, "passages": 2, "passage_tokens": 100}],
    },
    "causal-small": {"model": "causal"},
}
_OWN_INDEX = ("ance", "mdr", "orqa", "realm", "rag", "emdr2", "static")
_CORPUS = ("ict", "mlm", "realm")
_SMALL = [(r, name) for r in RECIPES for name in preset_names(r) if name.endswith("-small")]


class _Reached(Exception):
    """Everything was ready to train."""


@pytest.fixture(scope="module")
def own_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    BertModel(tiny_config(max_position_embeddings=512)).save_pretrained(folder / "bert")
    tiny_tokenizer().save_pretrained(folder / "bert")
    tiny_generator(folder / "bart")
    causal_folder(folder / "causal")
    rivers = [f"river{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(60)]
    passages = [
        Passage(f"p{n}", name, f"The {name} rises {name}born. It ends in the sea in {1900 + n}.")
        for n, name in enumerate(rivers)
    ]
    encoder = load_encoder(folder / "bert")
    build_index(passages, folder / "index", encoder=encoder, settings=BuildSettings(retriever="hybrid"))
    records, questions, hops = [], [], []
    for n, passage in enumerate(passages):
        other = passages[(n + 1) % 60]
        asked = {"question": f"Where does the {passage.title} rise?", "answers": [f"{passage.title}born"]}
        texts = [
            {"id": p.id, "title": p.title, "text": p.text, "target": float(p is passage), "score": 1.0}
            for p in (passage, other)
        ]
        records.append({**asked, "positive_ctxs": texts[:1], "hard_negative_ctxs": texts[1:]})
        questions.append({**asked, "gold_passage_ids": [passage.id], "ctxs": texts})
        hops.append({**asked, "gold_passage_ids": [passage.id, other.id]})
    for name, rows in (("examples", records), ("questions", questions), ("hops", hops)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize(("recipe", "preset"), _SMALL)
def test_a_preset_begins_on_sixty_questions(
    recipe: str, preset: str, own_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: Any, **__: Any) -> None:
        raise _Reached

    monkeypatch.chdir(own_data)
    monkeypatch.setattr("rag.training.run.fit", fit)
    monkeypatch.setattr("readers.extractive.training.recipe.fit", fit, raising=False)
    by_question = recipe in ("orqa", "rag", "emdr2", "generator", "reader")
    files = "index" if recipe in _CORPUS else "hops.jsonl" if recipe == "mdr" else "examples.jsonl"
    files = "questions.jsonl" if by_question else files
    given: dict[str, Any] = {"train": [files]} if recipe == "reader" else {"train_files": files}
    given |= {"index": "index"} if recipe in _OWN_INDEX else {}
    given |= {} if recipe in (*_MODELS, *_OWN_INDEX) else {"question_encoder": "bert"}
    given |= {"calibrate": []} if recipe == "reader" else {}
    models = _MODELS.get(preset, _MODELS.get(recipe, {}))
    with pytest.raises(_Reached):
        rag.train(recipe, tmp_path / "run", config=preset, **models, **given)
