import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.files import read_json
from rag.runtime import hardware
from retrievers.encoders import bi_encoder
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.open import load_encoder, load_like
from tests.support.messages import refusal

TEXTS = [
    "The Danube rises in the Black Forest.",
    "",
    "x" * 500,
    "Weiß 中文 émigré 🙂 \u0000 text",
    "the river " * 200,
    "text",
]
TITLES = ["Danube", "", "", "Straße", "River", ""]


def test_nothing_to_encode_and_titles_that_do_not_match(encoder):
    assert (
        encoder.encode_passages([], []).shape
        == encoder.encode_questions([]).shape
        == (0, encoder.dim)
    )
    with pytest.raises(ValueError, match="longer"):
        encoder.encode_passages(["a"], ["b", "c"])


def test_windows_and_batches_do_not_matter(tiny_bert, encoder, monkeypatch):
    texts = ["the river " * (n % 17) + str(n) for n in range(60)]
    expected = encoder.encode_passages([""] * 60, texts)
    monkeypatch.setattr(bi_encoder, "WINDOW_ROWS", 7)
    done: list[int] = []
    small = BiEncoder.load(tiny_bert, precision="fp32", batch_size=3).reporting(done.append)
    np.testing.assert_allclose(small.encode_passages([""] * 60, texts), expected, atol=1e-5)
    assert (sum(done), max(done)) == (60, 3)
    assert small.identity == encoder.identity


def test_settings_reach_the_vectors_and_the_identity(tiny_bert, encoder):
    changed = BiEncoder.load(
        tiny_bert,
        precision="fp32",
        normalize=True,
        query_prefix="who ",
        passage_prefix="the ",
        max_length=8,
        layout="{text} {title}",
    )
    assert len(changed.identity.differences(encoder.identity)) == 6
    question = changed.encode_questions(["wrote"])
    np.testing.assert_allclose(np.linalg.norm(question), 1.0, atol=1e-6)
    plain = encoder.encode_questions(["who wrote"])
    np.testing.assert_allclose(question, plain / np.linalg.norm(plain), atol=1e-5)
    passage = changed.encode_passages(["title"], ["river"])
    plain = encoder.encode_questions(["the river title"])
    np.testing.assert_allclose(passage, plain / np.linalg.norm(plain), atol=1e-5)
    long, cut = changed.encode_passages(["", ""], ["the river " * 50, "the river " * 5])
    np.testing.assert_allclose(long, cut, atol=1e-6)


def test_what_is_cut_is_said_once(tiny, tiny_bert, tmp_path, caplog):
    tiny.late_interaction(tmp_path / "tokens")
    with refusal(ConfigError):
        BiEncoder.load(tmp_path / "tokens", precision="fp32").encode_questions(["the river"])
    for folder, limit in ((tiny_bert, 8), (tmp_path / "tokens", 32)):
        encoder = BiEncoder.load(folder, precision="fp32", max_length=8)
        caplog.clear()
        encoder.passage_tokens(["", ""], ["danube", "text text"])
        encoder.question_tokens(["the river"])
        assert "longer than" not in caplog.text
        for _ in range(2):
            encoder.passage_tokens(["river", "", ""], ["the " * 7, "text", "the " * 40])
            encoder.question_tokens(["the river " * 40, "the river"])
        assert caplog.text.count("2 of 3 passages are longer than the 8 tokens") == 1
        assert caplog.text.count(f"1 of 2 questions are longer than the {limit} tokens") == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("precision", "fp8"),
        ("pooling", "median"),
        ("max_length", 1),
        ("max_length", 65),
        ("layout", "{title}"),
    ],
)
def test_bad_settings(tiny_bert, setting, value):
    with refusal(ConfigError):
        BiEncoder.load(tiny_bert, **{"precision": "fp32", setting: value})


def test_two_towers_in_two_ways(tiny, tmp_path):
    both = tiny.dpr(tmp_path)
    encoders = [
        BiEncoder.load(both, precision="fp32"),
        BiEncoder.load(f"{both / 'ctx_encoder'} + {both / 'question_encoder'}", precision="fp32"),
    ]
    assert len({encoder.identity.weights_sha256 for encoder in encoders}) == 1
    questions = [encoder.encode_questions(["who wrote the text"]) for encoder in encoders]
    np.testing.assert_array_equal(questions[0], questions[1])
    assert not np.allclose(questions[0], encoders[0].encode_passages([""], ["who wrote the text"]))
    again = load_like(encoders[1].identity, precision="fp32")
    assert again.identity == encoders[1].identity
    other = tiny.bert(tmp_path / "wide", hidden_size=16)
    with refusal(MismatchedArtifactError):
        BiEncoder.load(f"{both / 'ctx_encoder'} + {other}", precision="fp32")


def test_the_identity_changes_with_one_weight(tiny_bert, encoder, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "copy")
    assert BiEncoder.load(folder, precision="fp32").identity.differences(encoder.identity) == ()
    state = load_file(folder / "model.safetensors")
    state["embeddings.LayerNorm.bias"][0] += 1
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (difference,) = BiEncoder.load(folder, precision="fp32").identity.differences(encoder.identity)
    assert difference.startswith("weights_sha256")


def test_another_tokenizer_is_another_encoder_and_a_lost_one_is_refused(
    tiny_bert, encoder, tmp_path
):
    folder = shutil.copytree(tiny_bert, tmp_path / "copy")
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"danube"', '"rhine"'))
    (difference,) = BiEncoder.load(folder, precision="fp32").identity.differences(encoder.identity)
    assert difference.startswith("tokenizer_sha256")
    older = replace(
        encoder.identity, tokenizer_sha256=""
    )  # of an index from before it was recorded
    assert older.differences(encoder.identity) == ()
    file.unlink()
    with refusal(ArtifactError):
        BiEncoder.load(folder, precision="fp32")
    (folder / "tokenizer_config.json").unlink()  # which asks for tokenizer.json
    (folder / "merges.txt").touch()  # of another kind of vocabulary than BERT's
    with refusal(ArtifactError):
        BiEncoder.load(folder, precision="fp32")
    (folder / "merges.txt").unlink()
    entries = load_vocabulary(tiny_bert)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    again = BiEncoder.load(folder, precision="fp32")
    np.testing.assert_allclose(
        again.encode_passages(TITLES, TEXTS), encoder.encode_passages(TITLES, TEXTS), atol=1e-6
    )
    (folder / "vocab.txt").write_text("\n".join([*entries, "rhine"]) + "\n")
    longer = BiEncoder.load(folder, precision="fp32")
    (difference,) = longer.identity.differences(again.identity)
    assert difference.startswith("tokenizer_sha256")
    with refusal(MismatchedArtifactError):
        longer.encode_questions(["rhine"])


def load_vocabulary(folder):
    vocabulary = read_json(folder / "tokenizer.json")["model"]["vocab"]
    return sorted(vocabulary, key=vocabulary.get)


@pytest.mark.needs_bf16
def test_auto_keeps_questions_in_fp32(tiny_bert, encoder, monkeypatch):
    monkeypatch.setattr(hardware, "precisions", lambda device: {"bf16": True})
    auto = BiEncoder.load(tiny_bert, device="cpu")
    assert (auto.precision, auto.query_precision) == ("bf16", "fp32")
    np.testing.assert_array_equal(auto.encode_questions(TEXTS), encoder.encode_questions(TEXTS))
    assert (
        np.abs(auto.encode_passages(TITLES, TEXTS) - encoder.encode_passages(TITLES, TEXTS)).max()
        > 0
    )


def test_without_bf16_auto_is_fp32_and_bf16_is_refused(tiny_bert, monkeypatch):
    monkeypatch.setattr(hardware, "precisions", lambda device: {})
    assert BiEncoder.load(tiny_bert, device="cpu").precision == "fp32"
    with refusal(ConfigError):
        BiEncoder.load(tiny_bert, device="cpu", precision="bf16")


@pytest.mark.parametrize(
    ("load", "dim", "name"),
    [
        (BiEncoder.load, 384, "all-MiniLM-L6-v2"),
        (partial(load_encoder, "minilm-qa"), 384, "minilm-qa"),
        (partial(load_encoder, "static"), 256, "static"),
    ],
)
def test_the_encoders_of_the_installation(load, dim, name):
    encoder = load(precision="fp32")
    assert (encoder.dim, encoder.identity.name, encoder.identity.similarity) == (
        dim,
        name,
        "cosine",
    )
    assert load_like(encoder.identity).identity == encoder.identity
    question = encoder.encode_questions(["Where does the Danube rise?"])
    passages = encoder.encode_passages(
        ["Rhine", "Danube"],
        ["The Rhine ends in the North Sea.", "The river rises in the Black Forest."],
    )
    scores = (passages @ question.T)[:, 0]
    assert scores[1] > scores[0] + 0.2
