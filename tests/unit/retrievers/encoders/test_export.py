"""Finished encoders: transformers, sentence-transformers and `BiEncoder` read the same vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

from rag.cli.recipe import say_encoder
from rag.config import load_config
from rag.training.card import render_card
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.export import TowerWeights, write_encoder
from retrievers.encoders.head import Linear, linear_of
from retrievers.encoders.interaction import Interaction
from retrievers.encoders.layout import PAIR
from retrievers.encoders.settings import EncoderForm
from retrievers.training.config import DprTrainConfig
from retrievers.training.recipe import encoder_card


def _card(config: DprTrainConfig, form: EncoderForm) -> str:
    return render_card(config, encoder_card(form), {}, {})


_QUESTIONS = ["who wrote the text", "the river"]
_TITLES = ["danube", ""]
_TEXTS = ["the danube rises in the black forest", "a river"]


def _tower(folder: Path, *, projection: tuple[int, bool] | None = None, seed: int = 0) -> TowerWeights:
    model = AutoModel.from_pretrained(folder)
    torch.manual_seed(seed)
    head: tuple[Linear, ...] = ()
    if projection is not None:
        size, biased = projection
        head = (linear_of(torch.randn(size, 32), torch.randn(size) if biased else None),)
    return TowerWeights(json.loads((folder / "config.json").read_text()), model.state_dict(), folder, head)


def _pooled(folder: Path, texts: list[str], pooling: str) -> np.ndarray:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        with torch.no_grad():
            given = tokenizer(text, return_tensors="pt")
            hidden = model(given["input_ids"], attention_mask=given["attention_mask"]).last_hidden_state[0]
        rows.append(hidden[0] if pooling == "cls" else hidden.mean(0))
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("projection", [None, (8, True), (8, False)])
def test_a_shared_tower_is_the_same_for_all_three(
    tmp_path: Path, tiny_bert: Path, pooling: str, normalize: bool, projection: Any
) -> None:
    library = pytest.importorskip("sentence_transformers")
    tower = _tower(tiny_bert, projection=projection)
    form = EncoderForm(pooling, normalize, 48, "{title} {text}", query_prefix="the ")
    folder = write_encoder(tmp_path / "encoder", tower, None, form)

    ours = BiEncoder.load(folder, precision="fp32")
    assert ours.identity.max_length == 48
    assert (ours.identity.pooling, ours.identity.normalize) == (pooling, normalize)
    assert ours.identity.query_prefix == "the "
    questions = ours.encode_questions(_QUESTIONS)
    passages = ours.encode_passages(_TITLES, _TEXTS)

    peer = library.SentenceTransformer(str(folder), device="cpu")
    joined = [f"{title} {text}".strip() for title, text in zip(_TITLES, _TEXTS, strict=True)]
    np.testing.assert_allclose(peer.encode(_QUESTIONS, prompt_name="query"), questions, atol=2e-5)
    np.testing.assert_allclose(peer.encode(joined), passages, atol=2e-5)
    assert peer.similarity_fn_name == ("cosine" if normalize else "dot")

    expected = _pooled(folder, [f"the {question}" for question in _QUESTIONS], pooling)
    for layer in tower.head:
        weight = layer.weight.detach().numpy()
        bias = None if layer.bias is None else layer.bias.detach().numpy()
        expected = expected @ weight.T + (0 if bias is None else bias)
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(questions, expected, atol=2e-5)


@pytest.mark.parametrize("pooling", ["weightedmean", "mean_sqrt_len_tokens"])
def test_every_pooling_is_written_as_it_is_read(tmp_path: Path, tiny_bert: Path, pooling: str) -> None:
    form = EncoderForm(pooling, normalize=False, max_length=48)
    folder = write_encoder(tmp_path / "encoder", _tower(tiny_bert), None, form)
    assert BiEncoder.load(folder, precision="fp32").identity.pooling == pooling


@pytest.mark.parametrize("projection", [None, (8, True)])
def test_two_bert_towers_become_dprs_layout(tmp_path: Path, tiny: Any, projection: Any) -> None:
    towers = [_tower(tiny.bert(tmp_path / str(n), seed=n), projection=projection, seed=n) for n in (1, 2)]
    form = EncoderForm("cls", False, 64, PAIR)
    folder = write_encoder(tmp_path / "encoder", *towers, form)

    ours = BiEncoder.load(folder, precision="fp32")
    assert ours.identity.layout == PAIR
    tokenizer = AutoTokenizer.from_pretrained(folder / "ctx_encoder")
    asked = DPRQuestionEncoder.from_pretrained(folder / "question_encoder").eval()
    found = DPRContextEncoder.from_pretrained(folder / "ctx_encoder").eval()
    assert AutoModel.from_pretrained(folder / "question_encoder").config.model_type == "dpr"
    for row, question in enumerate(_QUESTIONS):
        with torch.no_grad():
            hf = asked(tokenizer(question, return_tensors="pt")["input_ids"]).pooler_output[0]
        np.testing.assert_allclose(hf, ours.encode_questions(_QUESTIONS)[row], atol=2e-5)
    ids = tokenizer(_TITLES[0], _TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        hf = found(ids, token_type_ids=torch.zeros_like(ids)).pooler_output[0]
    np.testing.assert_allclose(hf, ours.encode_passages(_TITLES, _TEXTS)[0], atol=2e-5)


@pytest.mark.parametrize(
    ("form", "layout"),
    [
        (EncoderForm("mean", True, 64, PAIR, "the ", "in "), PAIR),
        (EncoderForm("cls", False, 64, "{text} {title}"), "{text} {title}"),
    ],
)
def test_other_pairs_of_towers_become_two_folders(
    tmp_path: Path, tiny: Any, form: EncoderForm, layout: str
) -> None:
    towers = [_tower(tiny.bert(tmp_path / str(n), seed=n)) for n in (1, 2)]
    folder = write_encoder(tmp_path / "encoder", *towers, form)
    identity = BiEncoder.load(folder, precision="fp32").identity
    assert (identity.layout, identity.pooling, identity.normalize) == (layout, form.pooling, form.normalize)
    assert (identity.query_prefix, identity.passage_prefix) == (form.query_prefix, form.passage_prefix)
    texts = ["the river", "danube"]
    questions = BiEncoder.load(folder, precision="fp32").encode_questions(texts)
    expected = _pooled(folder / "query_encoder", [form.query_prefix + text for text in texts], form.pooling)
    if form.normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(questions, expected, atol=2e-5)


def test_equal_weights_give_equal_bytes_and_replace_what_was_there(tmp_path: Path, tiny_bert: Path) -> None:
    form = EncoderForm("mean", True, 48, "{title} {text}")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("old")
    folders = [write_encoder(tmp_path / name, _tower(tiny_bert), None, form) for name in "ab"]
    files = [{p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders]
    assert files[0] == files[1]
    assert {"modules.json", "model.safetensors", "tokenizer.json"} <= set(map(str, files[0]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]  # nothing temporary is left


def test_the_card_says_what_was_done_and_no_path(tmp_path: Path) -> None:
    config = DprTrainConfig(
        out=tmp_path / "run", train_files=(tmp_path / "train.json",), index=tmp_path / "index", name="mine",
        question_encoder=str(tmp_path), notes="Seen once.", layout="{text} {title}", query_prefix="",
    )  # fmt: skip
    form = EncoderForm("mean", True, 48, "{title} {text}", "query: ")
    card = render_card(config, encoder_card(form), {"questions": 12}, {"nll": 0.123456, "top": {"1": 0.5}})
    assert str(tmp_path) not in card
    for words in ("# mine", "rag train dpr --config FILE", "| nll | 0.1235 |", "| top | 1 0.5 |",
                  "| questions | 12 |", "Seen once.", "reads `query: ` before every question"):  # fmt: skip
        assert words in card, words
    (tmp_path / "FILE.json").write_text(card.partition("```json")[2].partition("```")[0])
    stated = load_config(DprTrainConfig, tmp_path / "FILE.json", overrides={"out": "run"})
    assert stated.train_files == (Path("train.json"),)
    assert stated.model == config.model.replaced(question_encoder=tmp_path.name)
    assert (stated.data, stated.optim) == (config.data, config.optim)


@pytest.mark.parametrize("last", ["encoder", "cross-encoder"])
def test_the_card_names_the_run_where_every_run_has_such_a_folder(tmp_path: Path, last: str) -> None:
    start = tmp_path / "first" / last
    start.mkdir(parents=True)
    config = DprTrainConfig(out=tmp_path / "run", train_files=(tmp_path / "t",), question_encoder=str(start))
    card = _card(config, EncoderForm("mean", True, 48))
    assert f"started from first/{last}." in card
    assert f'"question_encoder": "first/{last}"' in card


def test_late_interaction_is_indexed_by_its_own_type(
    tmp_path: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = DprTrainConfig(out=tmp_path / "run", train_files=(tmp_path / "t",))
    form = EncoderForm("tokens", True, 48, interaction=Interaction(12))
    assert "--index-type plaid" not in _card(config, EncoderForm("mean", True, 48))
    card = _card(config, form)
    assert "--index-type plaid --out INDEX" in card
    say_encoder(write_encoder(tmp_path / "c", _tower(tiny_bert, projection=(8, False)), None, form))
    assert capsys.readouterr().out.endswith("--index-type plaid\n")
