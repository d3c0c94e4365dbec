"""Checkpoints as they were published before safetensors, `pytorch_model.bin` alone and perhaps no
tokenizer.json: they compute what transformers' and sentence-transformers' own classes do.
"""

import re
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoTokenizer,
    DPRContextEncoder,
    DPRQuestionEncoder,
    DPRReader,
)

from indexers.index import Index
from rag.core.types import Passage
from rag.data.files.rows import write_json_lines
from readers.extractive.files import start_model
from readers.generative.reader import GenerativeReader
from readers.llm.local import open_local
from readers.llm.specs import LanguageModel
from readers.protocols import ReadRequest
from retrievers.encoders.bi_encoder import BiEncoder
from tests.commands import run_successfully
from tests.published import (
    hub_cache,
    published_dpr,
    published_encoder,
    published_seq2seq,
    stored_as_bin,
    with_vocabulary_alone,
)
from tests.support.files import change_json
from tests.tiny_causal import causal_folder

TITLES = ["Tower", "City"]
TEXTS = ["the tower is 57 meters near the river", "the city", "how many bridges?"]
DPR_NAMES = (
    "facebook/dpr-ctx_encoder-single-nq-base",
    "facebook/dpr-question_encoder-single-nq-base",
)


def hidden_states(folder: Path, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states (n, L, H) and mask (n, L) of transformers' bare network."""
    tokens = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, return_tensors="pt", return_token_type_ids=False
    )
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder)(**tokens)[0]
    return hidden, tokens.attention_mask


def mean(folder: Path) -> torch.Tensor:
    hidden, mask = hidden_states(folder, TEXTS)
    return (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


def first(folder: Path) -> torch.Tensor:
    return hidden_states(folder, TEXTS)[0][:, 0]


def contriever(folder: Path) -> Path:
    published_encoder(folder, "bert-base-uncased")
    change_json(folder / "config.json", architectures=["Contriever"])
    return stored_as_bin(folder)


def dragon(folder: Path) -> Path:
    published_encoder(folder, "bert-base-uncased")
    return with_vocabulary_alone(stored_as_bin(folder))


def co_condenser(folder: Path) -> Path:
    return stored_as_bin(published_encoder(folder, "bert-base-uncased", "ModelForMaskedLM"))


def ance(folder: Path) -> Path:
    published_encoder(folder, "roberta-base", "ModelForMaskedLM")
    torch.manual_seed(5)
    head = {"embeddingHead.weight": torch.randn(24, 32), "embeddingHead.bias": torch.randn(24)}
    return stored_as_bin(
        folder, **head, **{"norm.weight": torch.randn(24), "norm.bias": torch.randn(24)}
    )


def ance_vectors(folder: Path) -> torch.Tensor:
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    projected = functional.linear(
        first(folder), state["embeddingHead.weight"], state["embeddingHead.bias"]
    )
    return functional.layer_norm(projected, (24,), state["norm.weight"], state["norm.bias"])


def split_mpnet(folder: Path) -> Path:
    return stored_as_bin(published_encoder(folder, "mpnet-base"), parts=3)


def old_names(folder: Path) -> Path:
    """BERT of 2018: LayerNorm's gamma and beta, in a file that is no archive."""
    stored_as_bin(published_encoder(folder, "bert-base-uncased"))
    file = folder / "pytorch_model.bin"
    state = torch.load(file, weights_only=True)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in state.items()
    }
    torch.save(renamed, file, _use_new_zipfile_serialization=False)
    return folder


def deberta(folder: Path) -> Path:
    return stored_as_bin(published_encoder(folder, "deberta-v3-base"))


Make = Callable[[Path], Path]
Oracle = Callable[[Path], torch.Tensor]


@pytest.mark.parametrize(
    ("make", "pooling", "oracle"),
    [
        (contriever, "auto", mean),
        (dragon, "cls", first),
        (co_condenser, "cls", first),
        (ance, "auto", ance_vectors),
        (split_mpnet, "mean", mean),
        (old_names, "mean", mean),
        (deberta, "cls", first),
    ],
)
def test_encoders(make: Make, pooling: str, oracle: Oracle, tmp_path: Path) -> None:
    folder = make(tmp_path)
    encoder = BiEncoder.load(folder, precision="fp32", pooling=pooling)
    vectors = encoder.encode_passages([""] * len(TEXTS), TEXTS)
    assert vectors == pytest.approx(oracle(folder).numpy(), abs=1e-5)


@pytest.mark.parametrize("name", ["bge-m3", "labse"])
def test_folders_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    """BGE-M3 keeps the heads of its other outputs beside the network; LaBSE's Dense is a `.bin`."""
    folder = tmp_path / name
    base = {"bge-m3": "xlm-roberta-base", "labse": "bert-base-uncased"}[name]
    network = published_encoder(tmp_path / "network", base)
    parts = [modules.Transformer(str(network)), modules.Pooling(32, "cls")]
    if name == "labse":
        parts.append(modules.Dense(32, 12))
    parts.append(modules.Normalize())
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(folder))
    stored_as_bin(folder)
    if name == "bge-m3":
        torch.save({"weight": torch.ones(1, 32)}, folder / "sparse_linear.pt")
        torch.save({"weight": torch.ones(32, 32)}, folder / "colbert_linear.pt")
    peer = SentenceTransformer(str(folder), device="cpu")
    vectors = BiEncoder.load(folder, precision="fp32").encode_questions(TEXTS)
    np.testing.assert_allclose(vectors, peer.encode_query(TEXTS), atol=1e-5)


def dpr_towers(folder: Path, projection_dim: int) -> list[Path]:
    """Both towers in the layout of the hub: an old `.bin` file, and vocab.txt alone."""
    torch.manual_seed(3)
    towers = []
    for kind in (DPRContextEncoder, DPRQuestionEncoder):
        place = folder / kind.__name__
        published_dpr(place, kind, projection_dim=projection_dim)
        towers.append(with_vocabulary_alone(stored_as_bin(place, is_archive=False)))
    return towers


def dpr_vectors(towers: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """transformers' vectors of passages (title and text in one pair) and of questions."""
    tokenizer = AutoTokenizer.from_pretrained(towers[0])
    passages = tokenizer(TITLES, TEXTS[:2], padding=True, return_tensors="pt")
    questions = tokenizer(TEXTS, padding=True, return_tensors="pt")
    of_passages = DPRContextEncoder.from_pretrained(towers[0])
    of_questions = DPRQuestionEncoder.from_pretrained(towers[1])
    with torch.no_grad():
        return tuple(
            network(tokens.input_ids, attention_mask=tokens.attention_mask).pooler_output.numpy()
            for network, tokens in ((of_passages, passages), (of_questions, questions))
        )


@pytest.mark.parametrize("projection_dim", [0, 8])
def test_dpr_as_published(projection_dim: int, tmp_path: Path) -> None:
    towers = dpr_towers(tmp_path, projection_dim)
    encoder = BiEncoder.load(" + ".join(map(str, towers)), precision="fp32")
    passages, questions = dpr_vectors(towers)
    vectors = encoder.encode_passages(TITLES, TEXTS[:2])
    np.testing.assert_allclose(vectors, passages, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_questions(TEXTS), questions, atol=1e-5)


def test_the_command_of_the_guide_indexes_with_dpr_by_its_hub_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = dpr_towers(tmp_path, 0)
    for name, tower in zip(DPR_NAMES, towers, strict=True):
        hub_cache(tmp_path / "hub", name, tower)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"title": title, "text": text} for title, text in zip(TITLES, TEXTS, strict=False)]
    write_json_lines(corpus, rows)
    options = ("--retriever", "dense", "--split", "none", "--precision", "fp32")
    out = tmp_path / "index"
    run_successfully("index", corpus, "--encoder", " + ".join(DPR_NAMES), *options, "--out", out)
    passages, _ = dpr_vectors(towers)
    with Index.open(out) as index:
        vectors = index.require_dense().embeddings.rows(np.arange(2))
    np.testing.assert_allclose(vectors, passages, atol=1e-5)


def test_fusion_in_decoder_as_published(tmp_path: Path) -> None:
    """Its code saved a wrapper around the encoder, and one around each block."""
    plain = published_seq2seq(tmp_path / "plain", "t5-small")
    wrapped = stored_as_bin(published_seq2seq(tmp_path / "wrapped", "t5-small"))
    file = wrapped / "pytorch_model.bin"
    state = {}
    for name, tensor in torch.load(file, weights_only=True).items():
        of_wrapper = re.sub(r"^encoder\.", "encoder.encoder.", name)
        of_block = re.sub(r"^(encoder\.encoder\.block\.\d+)", r"\1.module", of_wrapper)
        state[of_block] = tensor
    torch.save(state, file)
    change_json(wrapped / "config.json", architectures=["FiDT5"])
    passages = [Passage(str(number), "", text) for number, text in enumerate(TEXTS)]
    request = ReadRequest.of("how many?", passages, [1.0, 2.0, 3.0])
    results = [
        GenerativeReader.load(folder, precision="fp32", passage_tokens=90).read([request])
        for folder in (plain, wrapped)
    ]
    assert results[0][0].answers == results[1][0].answers


def test_a_language_model(tmp_path: Path) -> None:
    folder = causal_folder(tmp_path, positions=2048)
    named = LanguageModel(model=str(folder), answer_tokens=8)
    expected = open_local(named, precision="fp32")
    messages = [{"role": "user", "content": "where is the tower?"}]
    reply = expected.completer.complete(messages, 8)
    stored_as_bin(folder, parts=2)
    again = open_local(named, precision="fp32").completer.complete(messages, 8)
    assert again.text == reply.text
    assert [token for token, _ in again.tokens] == [token for token, _ in reply.tokens]
    expected_log_p = [log_p for _, log_p in reply.tokens]
    assert [log_p for _, log_p in again.tokens] == pytest.approx(expected_log_p, abs=1e-4)


def test_the_encoder_of_dpr_s_reader_is_a_base_of_training(tmp_path: Path) -> None:
    reader = published_dpr(tmp_path, DPRReader)
    stored_as_bin(tmp_path, is_archive=False)
    model, tokenizer = start_model(str(tmp_path), longest=60, seed=0)
    tokens = tokenizer(TEXTS, padding=True, return_tensors="pt")
    inputs = (tokens.input_ids, tokens.attention_mask)
    with torch.no_grad():
        expected = reader.span_predictor.encoder.bert_model(*inputs)[0]
        hidden = model.eval().encoder(*inputs)[0]
    mask = tokens.attention_mask.bool()
    assert torch.allclose(hidden[mask], expected[mask], atol=1e-5)
