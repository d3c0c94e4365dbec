"""What an encoder's folder states is obeyed; what it does not state is said, with an option that
works.
"""

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError, with_hub_names
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.folders import read_settings
from retrievers.encoders.open import load_encoder, load_like, passage_budget
from retrievers.encoders.settings import FID_LAYOUT, FID_PREFIX, EncoderSettings
from retrievers.encoders.static import StaticEncoder
from retrievers.training.bi_encoder import adopt_index
from retrievers.training.config import DprTrainConfig
from tests.support.files import write_json
from tests.support.messages import refusal
from tests.token_towers import bi_encoder
from tests.unit.retrievers.encoders.test_encoder_settings import sentence_folder

CTX, QUESTION = "dpr-ctx_encoder-single-nq-base", "dpr-question_encoder-single-nq-base"
PLAIN = ("Transformer", "Pooling")


def options_in(text: str) -> dict[str, Any]:
    """The options of the command line that a message names, as Python's arguments."""
    options: dict[str, Any] = {}
    for name, quoted, word in re.findall(r"--([a-z-]+)(?: \$?'([^']*)'| (\w[\w-]*))?", text):
        value: Any = (quoted or word).replace("\\n", "\n")
        if name.endswith("normalize"):
            value = name == "normalize"
        options[name.removeprefix("no-").replace("-", "_")] = value
    return options


@pytest.fixture(scope="module")
def towers(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("towers")
    tiny.dpr(place / "both")
    shutil.copytree(place / "both/ctx_encoder", place / CTX)
    shutil.copytree(place / "both/question_encoder", place / QUESTION)
    (place / "swapped").mkdir()
    shutil.copytree(place / "both/ctx_encoder", place / "swapped/question_encoder")
    shutil.copytree(place / "both/question_encoder", place / "swapped/ctx_encoder")
    return place


TOWERS = {
    "passage tower": [CTX],
    "question tower": [QUESTION],
    "towers in the wrong order": [QUESTION, CTX],
    "passage tower twice": [CTX, CTX],
}


@pytest.mark.parametrize("given", TOWERS.values(), ids=TOWERS)
def test_one_tower_of_two_is_refused_with_a_remedy_that_works(
    towers: Path, given: list[str]
) -> None:
    names = " + ".join(str(towers / name) for name in given)
    with refusal(MismatchedArtifactError) as caught:
        BiEncoder.load(names, precision="fp32")
    named = shlex.split(caught.value.hint)[-1]
    assert named == f"{towers / CTX} + {towers / QUESTION}"
    ours = BiEncoder.load(named, precision="fp32")
    both = BiEncoder.load(towers / "both", precision="fp32")
    asked = [encoder.encode_questions(["who wrote"]) for encoder in (ours, both)]
    np.testing.assert_array_equal(*asked)


def test_swapped_sub_folders_are_refused(towers: Path) -> None:
    with refusal(MismatchedArtifactError):
        BiEncoder.load(towers / "swapped", precision="fp32")


def test_one_tower_by_its_name_is_said(
    tiny_bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = [str(tmp_path / f"dragon-plus-{side}-encoder") for side in ("context", "query")]
    for place in pair:
        shutil.copytree(tiny_bert, place)
    both = BiEncoder.load(" + ".join(pair), precision="fp32")
    assert "one tower of two" not in caplog.text
    alone = BiEncoder.load(pair[1], precision="fp32")
    assert f'both: "{pair[0]} + {pair[1]}"' in caplog.text
    caplog.clear()
    load_like(alone.identity, precision="fp32")
    load_like(both.identity, precision="fp32")
    assert not caplog.text  # an index's encoder was spoken of when it was built


E5 = {"query_prefix": "query: ", "passage_prefix": "passage: "}
BGE = {"query_prefix": "Represent this sentence for searching relevant passages: "}
NOMIC = {"query_prefix": "search_query: ", "passage_prefix": "search_document: "}


@pytest.mark.parametrize(
    ("name", "folder", "stated"),
    [
        ("e5-base-v2", {}, E5),
        ("models--intfloat--e5-base-v2/snapshots/0a1b", {}, E5),
        ("multilingual-e5-small", {}, E5),
        ("multilingual-e5-large-instruct", {}, {"query_prefix": "Instruct: TASK\nQuery: "}),
        ("nomic-embed-text-v1.5", {}, NOMIC),
        ("bge-small-en-v1.5", {}, BGE),
        ("bge-m3", {}, {}),
        ("bge-m3", {"own": {"prompts": {"s2p_query": "q: "}}}, {"query_prefix": "NAME"}),
        ("e5-base-v2", {"own": {"prompts": {"query": "q: "}}}, {}),
        (
            "e5-mistral-7b-instruct",
            {"own": {"prompts": {"web_search_query": "Instruct: a\nQuery: "}}},
            {"query_prefix": "NAME"},
        ),
        ("paraphrase-MiniLM-L6-v2", {"kinds": PLAIN}, {"normalize": False}),
        ("msmarco-distilbert-base-tas-b", {"kinds": PLAIN}, {"normalize": True}),
        ("multi-qa-mpnet-base-dot-v1", {"kinds": PLAIN}, {"normalize": True}),
        ("LaBSE", {}, {}),
        ("LaBSE", {"kinds": PLAIN, "own": {"similarity_fn_name": "dot"}}, {}),
        (
            "facebook-dpr-ctx_encoder-single-nq-base",
            {"kinds": PLAIN},
            {"normalize": True, "layout": "pair"},
        ),
    ],
)
def test_what_is_guessed_is_one_line_and_its_options_settle_it(
    tmp_path: Path, name: str, folder: dict[str, Any], stated: dict[str, Any]
) -> None:
    settings = read_settings(sentence_folder(tmp_path / name, **folder))
    line = settings.guessed
    assert "\n" not in line
    assert options_in(line.partition(": ")[2]) == stated
    if not stated:
        assert line == ""
        return
    assert "snapshots" not in line
    changed = settings.override(**stated)
    assert changed.guessed == ""
    assert {name: getattr(changed, name) for name in stated} == stated


def test_what_a_plain_folder_needs_is_guessed_by_its_name(tmp_path: Path) -> None:
    settings = plain(tmp_path / "dkrr-dpr-nq-retriever")
    assert settings.pooling == "mean"
    stated = options_in(settings.guessed.rpartition("family need ")[2])
    assert stated == {"query_prefix": FID_PREFIX, "layout": FID_LAYOUT}


def test_a_prefix_can_be_the_name_of_a_prompt(tmp_path: Path) -> None:
    prompts = {"web_search_query": "Instruct: find\nQuery: ", "sts_query": "Instruct: compare"}
    settings = read_settings(sentence_folder(tmp_path, own={"prompts": prompts}))
    assert settings.query_prefix == ""
    assert "web_search_query, sts_query" in settings.guessed
    changed = settings.override(query_prefix="web_search_query")
    assert changed.query_prefix == prompts["web_search_query"]
    assert settings.override(query_prefix="query: ").query_prefix == "query: "


def plain(folder: Path, **config: Any) -> EncoderSettings:
    write_json(
        folder / "config.json", {"model_type": "bert", "max_position_embeddings": 96, **config}
    )
    weights = {"embeddings.word_embeddings.weight": np.zeros((4, 2), np.float32)}
    save_file(weights, folder / "model.safetensors")
    return read_settings(folder)


def test_lengths_are_the_folders_own(tmp_path: Path) -> None:
    long = plain(tmp_path / "long", max_position_embeddings=2048)
    assert long.max_length == 512
    assert "cut at 512 of 2048 tokens" in long.guessed
    assert "max_length" not in long.override(max_length=2048).guesses
    assert "512" not in plain(tmp_path / "short").guessed


def test_modules_that_are_not_read_say_what_they_are(tmp_path: Path) -> None:
    kinds = ("MLMTransformer", "SpladePooling")
    with refusal(ArtifactError):
        read_settings(sentence_folder(tmp_path / "splade", kinds=kinds))


@pytest.mark.parametrize(
    "config",
    [{"apply_zipf": True}, {"model_type": "model2vec"}, {"apply_zipf": 1, "max_length": 4}],
)
def test_folders_of_model2vec_alone_are_read_as_it_does(
    tiny: Any, tmp_path: Path, config: dict[str, Any]
) -> None:
    """Cut at 512 tokens or as stated, then without the unknown ones; the first name no type."""
    tiny.tokenizer(tmp_path)
    write_json(tmp_path / "config.json", config)
    drawn = np.random.default_rng(0).normal(size=(128, 8)).astype(np.float32)
    save_file({"embeddings": drawn}, tmp_path / "model.safetensors")
    texts = ["the 🙂 river", "ξ danube ξ the black forest", "the river " * 300 + "danube " * 90]
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids = encoding.ids[: config.get("max_length", 512)]
        expected.append(drawn[[token for token in ids if token != 1]].mean(0))
    found = StaticEncoder.load(tmp_path).encode_questions(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_errors_name_the_hubs_model_in_place_of_its_folder(tmp_path: Path) -> None:
    place = tmp_path / "models--owner--tiny-e5/snapshots/5b5b0a"
    with refusal(ArtifactError):
        read_settings(place)
    kept = "/data/snapshots/5b5b is no model"
    assert with_hub_names(kept) == kept


def test_overrides_are_refused_where_they_do_not_fit(tiny_bert: Path) -> None:
    with refusal(ConfigError):
        load_encoder("static", pooling="cls")
    cut, _ = passage_budget(tiny_bert, passage_prefix="the river ", max_length=40)
    assert cut == 40 - 3 - 2
    assert passage_budget("static", max_length=1 << 20)[0] == passage_budget("static")[0]


def test_dpr_alone_reads_straight_apostrophes(towers: Path, tiny_bert: Path) -> None:
    for place, is_same in ((towers / "both", True), (tiny_bert, False)):
        curved, straight = BiEncoder.load(place, precision="fp32").encode_questions(
            ["who’s the river", "who's the river"]
        )
        assert np.allclose(curved, straight) == is_same


def test_training_says_what_it_guesses(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.sentence_transformer(tmp_path).rename(tmp_path / "e5-tiny")
    lengths = {"question_tokens": 16, "passage_tokens": 24}
    bi_encoder(folder, **lengths)
    assert caplog.text.count("--query-prefix 'query: ' --passage-prefix 'passage: '") == 1
    caplog.clear()
    bi_encoder(folder, **lengths, **E5)
    assert "does not state" not in caplog.text


def test_training_over_an_index_of_two_towers_starts_from_its_question_tower(
    towers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The question tower alone is no encoder of passages, and need not be here."""
    identity = BiEncoder.load(f"{towers / CTX} + {towers / QUESTION}", precision="fp32").identity
    index: Any = SimpleNamespace(
        require_dense=lambda: SimpleNamespace(encoder=identity), check_encoder=lambda encoder: None
    )
    start = str(towers / QUESTION)
    config = DprTrainConfig(
        out=Path("run"), train_files=(Path("t.json"),), shared=False, question_encoder=start
    )
    assert adopt_index(config, index).question_encoder == start
    assert "questions start from" not in caplog.text
