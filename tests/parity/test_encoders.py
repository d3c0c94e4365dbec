"""Our vectors against those of transformers' DPR classes and of sentence-transformers."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel, AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

from rag.core.errors import ArtifactError, ConfigError
from rag.core.files import read_json
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.folders import read_settings
from retrievers.encoders.open import load_like
from retrievers.encoders.static import StaticEncoder
from retrievers.encoders.tower import Tower
from tests.support.files import change_json, write_json
from tests.support.messages import refusal
from tests.token_towers import bi_encoder

TEXTS = [
    "The Danube rises in the Black Forest.",
    "who wrote the text",
    "Weiß 中文 émigré",
    "x",
    "",
    "the river " * 40,
]
TITLES = ["Danube", "Text", "Straße", "X", "Title", "River"]


@pytest.fixture(scope="module", params=[0, 8])
def dpr(request, tiny, tmp_path_factory):
    return tiny.dpr(tmp_path_factory.mktemp("dpr"), projection_dim=request.param)


def test_dpr_towers(dpr):
    encoder = BiEncoder.load(dpr, precision="fp32")
    assert encoder.identity.layout == "pair"
    tokenizer = AutoTokenizer.from_pretrained(dpr / "ctx_encoder")
    options = {
        "padding": True,
        "truncation": "longest_first",
        "max_length": 64,
        "return_tensors": "pt",
    }
    passages = tokenizer(TITLES[:4], TEXTS[:4], **options)
    questions = tokenizer(TEXTS, **options)
    with torch.no_grad():
        contexts = DPRContextEncoder.from_pretrained(dpr / "ctx_encoder").eval()
        expected = contexts(
            passages["input_ids"], attention_mask=passages["attention_mask"]
        ).pooler_output
        asking = DPRQuestionEncoder.from_pretrained(dpr / "question_encoder").eval()
        asked = asking(
            questions["input_ids"], attention_mask=questions["attention_mask"]
        ).pooler_output
    assert encoder.dim == expected.shape[1]
    np.testing.assert_allclose(
        encoder.encode_passages(TITLES[:4], TEXTS[:4]), expected.numpy(), atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode_questions(TEXTS), asked.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "cls"},
        {"pooling": "lasttoken"},
        {"pooling": "mean", "normalize": False, "similarity": "dot"},
        {"dense": 12},
        {"prompts": {"query": "who wrote ", "document": "text: "}},
        {"prompts": {"query": "who ", "document": "the "}, "normalize": False, "similarity": "dot"},
    ],
    ids=lambda options: "-".join(map(str, options)) or "plain",
)
def test_sentence_transformers(tiny, tmp_path, options):
    folder = tiny.sentence_transformer(tmp_path, **options)
    peer = SentenceTransformer(str(folder), device="cpu")
    encoder = BiEncoder.load(folder, precision="fp32")
    assert encoder.identity.max_length == 24
    documents = [f"{title} {text}" for title, text in zip(TITLES, TEXTS, strict=True)]
    np.testing.assert_allclose(
        encoder.encode_passages(TITLES, TEXTS), peer.encode_document(documents), atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode_questions(TEXTS), peer.encode_query(TEXTS), atol=1e-5)
    assert encoder.identity.similarity == options.get("similarity", "cosine")


def _state(folder, **changes):
    """Change what config_sentence_transformers.json states; None takes an entry away."""
    file = folder / "config_sentence_transformers.json"
    stated = {**read_json(file), **changes}
    write_json(file, {key: value for key, value in stated.items() if value is not None})


def _old_layout(folder):
    """Move the network into 0_Transformer, and state nothing beside it, as releases before 1 did."""
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "sentence_bert_config.json"):
        shutil.move(folder / name, folder / "0_Transformer" / name)
    for file in folder.glob("tokenizer*"):
        shutil.move(file, folder / "0_Transformer" / file.name)
    listed = read_json(folder / "modules.json")
    listed[0]["path"] = "0_Transformer"
    write_json(folder / "modules.json", listed)
    (folder / "config_sentence_transformers.json").unlink()


def _distiluse(folder):
    _state(folder, similarity_fn_name=None)
    (file,) = folder.glob("*_Dense/config.json")
    write_json(file, {"in_features": 32, "out_features": 12})  # and the usual activation


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, lambda folder: _state(folder, similarity_fn_name=None)),
        ({}, _old_layout),
        ({"dense": 12}, _distiluse),
        ({}, lambda folder: _state(folder, similarity_fn_name="dot")),
    ],
    ids=["paraphrase", "0_Transformer", "distiluse", "dot"],
)
def test_similarities_are_sentence_transformers(tiny, tmp_path, options, change):
    """Also where the folder states none: its library compares by cosine then."""
    folder = tiny.sentence_transformer(tmp_path, normalize=False, **options)
    change(folder)
    peer = SentenceTransformer(str(folder), device="cpu")
    encoder = BiEncoder.load(folder, precision="fp32")
    expected = peer.similarity(peer.encode_query(TEXTS), peer.encode_document(TEXTS))
    ours = encoder.encode_questions(TEXTS) @ encoder.encode_passages([""] * len(TEXTS), TEXTS).T
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    assert encoder.identity.similarity == peer.similarity_fn_name


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ({"do_lower_case": True}, {"lowercase": False}),
        ({"do_lower_case": False}, {"lowercase": True}),
        ({"strip_accents": False}, {}),
        ({"tokenize_chinese_chars": False}, {}),
        ({"truncation_side": "left"}, {"lowercase": False, "strip_accents": False}),
    ],
)
def test_how_texts_are_spelled_and_cut_is_transformers(tiny, tmp_path, said, rules):
    """tokenizer_config.json decides, by its defaults too, and no question is spelled otherwise."""
    folder = tiny.sentence_transformer(tmp_path)
    change_json(folder / "tokenizer_config.json", **said, tokenizer_class="BertTokenizer")
    written = read_json(folder / "tokenizer.json")["normalizer"]
    change_json(folder / "tokenizer.json", normalizer={**written, **rules})
    texts = ["who’s The Danube", "WHO wrote", "émigré 中文", "the river " * 20 + "text"]
    peer = SentenceTransformer(str(folder), device="cpu")
    encoder = BiEncoder.load(folder, precision="fp32")
    np.testing.assert_allclose(encoder.encode_questions(texts), peer.encode_query(texts), atol=1e-5)


def test_dpr_as_sentence_transformers_has_it(tiny_bert, tmp_path):
    """Its users write title [SEP] text themselves, which is the layout "pair"."""
    folder = tmp_path / "facebook-dpr-ctx_encoder-single-nq-base"
    parts = [modules.Transformer(str(tiny_bert)), modules.Pooling(32, "cls")]
    peer = SentenceTransformer(modules=parts, device="cpu")
    peer.save_pretrained(str(folder))
    _state(folder, similarity_fn_name=None)
    encoder = BiEncoder.load(folder, precision="fp32", layout="pair")
    joined = [f"{title} [SEP] {text}" for title, text in zip(TITLES[:4], TEXTS[:4], strict=True)]
    np.testing.assert_allclose(
        encoder.encode_passages(TITLES[:4], TEXTS[:4]), peer.encode(joined), atol=1e-5
    )
    assert encoder.identity.similarity == "dot"


def test_positions_of_nomic_are_read(tiny, tmp_path):
    sizes = {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}
    config = AutoConfig.for_model("nomic_bert", **sizes, n_positions=2048, pad_token_id=0)
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(tmp_path / "bare")
    tiny.tokenizer(tmp_path / "bare")
    parts = [modules.Transformer(str(tmp_path / "bare"), max_seq_length=2048)]
    peer = SentenceTransformer(modules=[*parts, modules.Pooling(32)], device="cpu")
    peer.save_pretrained(str(tmp_path / "nomic"))
    stated = read_json(tmp_path / "nomic/config.json")
    stated["n_positions"] = stated.pop("max_position_embeddings", 2048)
    write_json(tmp_path / "nomic/config.json", stated)
    encoder = BiEncoder.load(tmp_path / "nomic", precision="fp32")
    assert encoder.identity.max_length == 2048
    text = "the river rises in the black forest " * 200
    ours = encoder.encode_passages([""], [text])
    np.testing.assert_allclose(
        ours, peer.encode_document([text], normalize_embeddings=True), atol=1e-5
    )


@pytest.mark.parametrize(
    ("stated", "normalizes"),
    [({}, False), ({"similarity_fn_name": "dot"}, False), ({"similarity_fn_name": "dot"}, True)],
)
def test_static_encoders_read_whole_texts_and_compare_as_sentence_transformers(
    tiny, tmp_path, stated, normalizes
):
    tiny.tokenizer(tmp_path / "bare")
    tokenizer = Tokenizer.from_file(str(tmp_path / "bare/tokenizer.json"))
    if normalizes:
        tokenizer.enable_truncation(6)
    torch.manual_seed(0)
    parts = [modules.StaticEmbedding(tokenizer, embedding_dim=8)]
    parts += [modules.Normalize()] * normalizes
    peer = SentenceTransformer(modules=parts, device="cpu")
    peer.save_pretrained(str(tmp_path / "static"))
    _state(tmp_path / "static", **{"similarity_fn_name": None, **stated})
    peer = SentenceTransformer(str(tmp_path / "static"), device="cpu")
    texts = [*TEXTS[:4], "the river " * 400 + "title text " * 400]
    encoder = StaticEncoder.load(tmp_path / "static")
    ours = encoder.encode_questions(texts) @ encoder.encode_passages([""] * 5, texts).T
    np.testing.assert_allclose(
        ours, peer.similarity(peer.encode(texts), peer.encode(texts)), atol=1e-4
    )


def tct_colbert(folder, texts, marker, length, *, filled):
    """Vectors by transformers, as Lin et al.'s encoders make them: what follows the marker counts."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModel.from_pretrained(folder).eval()
    vectors = []
    for text in texts:
        ids = tokenizer(
            f"[CLS] {marker} {text}" + "[MASK]" * (length if filled else 0),
            add_special_tokens=False,
            truncation=True,
            max_length=length,
            return_tensors="pt",
        ).input_ids
        with torch.no_grad():
            hidden = network(ids).last_hidden_state[0, 4:]
        vectors.append(hidden.mean(0).numpy() if len(hidden) else np.zeros(32, np.float32))
    return np.stack(vectors)


def test_tct_colbert_by_its_name_and_by_the_option(tiny, tmp_path):
    folder = tiny.bert(tmp_path / "tct_colbert-v2-hnp-msmarco")
    by_name = BiEncoder.load(folder, precision="fp32")
    other = BiEncoder.load(
        shutil.copytree(folder, tmp_path / "other"), precision="fp32", pooling="tct-colbert"
    )
    texts = [f"{title} {text}" for title, text in zip(TITLES, TEXTS, strict=True)]
    passages = tct_colbert(folder, [*texts, ""], "[D]", tiny.max_tokens, filled=False)
    questions = tct_colbert(folder, TEXTS, "[Q]", 36, filled=True)
    for encoder in (by_name, other):
        vectors = encoder.encode_passages([*TITLES, ""], [*TEXTS, ""])
        np.testing.assert_allclose(vectors, passages, atol=1e-5)
        np.testing.assert_allclose(encoder.encode_questions(TEXTS), questions, atol=1e-5)
        assert encoder.identity.differences(by_name.identity) == ()
    again = load_like(other.identity, precision="fp32").encode_questions(TEXTS)
    np.testing.assert_allclose(again, questions, atol=1e-5)


def fid_retriever(tiny, folder, **config):
    """A folder as FiD's code writes it: a network called `model`, and a head for every token."""
    tiny.bert(folder)
    weights = load_file(folder / "model.safetensors")
    stored = {f"model.{name}": weight for name, weight in weights.items()}
    head = {"proj": torch.nn.Linear(32, 8), "norm": torch.nn.LayerNorm(8)}
    torch.nn.init.normal_(head["norm"].weight)
    for name, layer in head.items():
        stored |= {f"{name}.{part}": weight.detach() for part, weight in layer.named_parameters()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    stated = {"indexing_dimension": 8, "projection": True, "extract_cls": False}
    stated |= {"apply_question_mask": True, "apply_passage_mask": True, "passage_maxlength": 24}
    change_json(folder / "config.json", architectures=["Retriever"], **stated, **config)
    return head


def test_a_retriever_of_fid_has_its_head_and_its_words(tiny, tmp_path):
    folder = tmp_path / "nq_retriever"
    head = fid_retriever(tiny, folder)
    encoder = BiEncoder.load(folder, precision="fp32")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModel.from_pretrained(tiny.bert(tmp_path / "bert")).eval()
    texts = [f"title: {title} context: {text}" for title, text in zip(TITLES, TEXTS, strict=True)]
    expected = []
    for text in [*texts, *(f"question: {text}" for text in TEXTS)]:
        ids = tokenizer(text, truncation=True, max_length=24, return_tensors="pt").input_ids
        with torch.no_grad():
            hidden = network(ids).last_hidden_state[0]
            expected.append(head["norm"](head["proj"](hidden)).mean(0).numpy())
    vectors = [*encoder.encode_passages(TITLES, TEXTS), *encoder.encode_questions(TEXTS)]
    np.testing.assert_allclose(vectors, np.stack(expected), atol=1e-5)
    assert read_settings(folder).guessed == ""
    change_json(folder / "config.json", apply_passage_mask=False)
    with refusal(ArtifactError):
        read_settings(folder)


def test_training_from_tct_colbert_takes_another_form(tiny, tmp_path):
    folder = tiny.bert(tmp_path / "tct_colbert-tiny")
    settings = read_settings(folder)
    with refusal(ConfigError):
        Tower.load(settings)
    assert Tower.load(settings.override(pooling="mean")).dim == 32
    model = bi_encoder(folder, question_tokens=16, passage_tokens=24)
    assert model.settings.passage.pooling == "cls"
