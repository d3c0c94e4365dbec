import shutil

import pytest
from safetensors.torch import save_file

from rag.core.errors import ArtifactError, ConfigError, DataError
from retrievers.encoders.folders import read_settings
from retrievers.encoders.tokenization import TextTokenizer
from tests.support.files import write_json, write_modules
from tests.support.messages import refusal


def sentence_folder(
    folder,
    *,
    kinds=("Transformer", "Pooling", "Normalize"),
    pooling=None,
    own=None,
    bert=None,
    **more,
):
    """The files of a sentence-transformers folder, as releases before 6 wrote them."""
    write_json(folder / "config.json", {"model_type": "bert", "max_position_embeddings": 128})
    write_modules(folder, *kinds)
    write_json(folder / "1_Pooling" / "config.json", pooling or {"pooling_mode_mean_tokens": True})
    write_json(folder / "config_sentence_transformers.json", own or {})
    write_json(
        folder / "sentence_bert_config.json",
        bert or {"max_seq_length": 100, "do_lower_case": False},
    )
    for name, content in more.items():
        write_json(folder / name, content)
    return folder


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 4}, "lasttoken"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "lasttoken"),
    ],
)
def test_pooling_is_read_in_old_and_new_words(tmp_path, config, expected):
    assert read_settings(sentence_folder(tmp_path, pooling=config)).pooling == expected


@pytest.mark.parametrize(
    ("own", "query", "passage"),
    [
        ({"prompts": {"query": "q: ", "document": "d: "}}, "q: ", "d: "),
        ({"prompts": {"query": "q: ", "passage": "p: "}}, "q: ", "p: "),
        ({"prompts": {"all": "a: "}, "default_prompt_name": "all"}, "a: ", "a: "),
        ({"prompts": {"query": "q: "}}, "q: ", ""),
        (
            {"prompts": {"query": "", "document": "d: "}, "default_prompt_name": "document"},
            "",
            "d: ",
        ),
        ({"prompts": {"query": "q: ", "document": ""}}, "q: ", ""),
        ({"prompts": {"query": "q: "}, "default_prompt_name": "query"}, "q: ", ""),
        (
            {"prompts": {"query": "", "document": "", "all": "a: "}, "default_prompt_name": "all"},
            "",
            "",
        ),
        ({}, "", ""),
    ],
)
def test_prompts(tmp_path, own, query, passage):
    settings = read_settings(sentence_folder(tmp_path, own=own))
    assert (settings.query_prefix, settings.passage_prefix) == (query, passage)


_USUAL = ("Transformer", "Pooling")
_MESSAGES = {"modality_config": {"text": {}, "message": {}}}


UNSUPPORTED = {
    "attention pools": {"pooling": {"pooling_mode": "attention"}},
    "two poolings": {"pooling": {"pooling_mode": ["cls", "mean"]}},
    "no pooling": {"pooling": {"embedding_dimension": 4}},
    "prompts that are not pooled": {"pooling": {"include_prompt": False}},
    "other similarity": {"own": {"similarity_fn_name": "manhattan"}},
    "other similarity of a static encoder": {
        "kinds": ("StaticEmbedding",),
        "own": {"similarity_fn_name": "euclidean"},
    },
    "arguments of a network": {"bert": {"config_args": {"num_hidden_layers": 1}}},
    "other outputs of a network": {
        "bert": {"modality_config": {"text": {"method_output_name": "pooler_output"}}}
    },
    "lengths of their own": {"bert": {"query_length": 8}},
    "cut vectors": {"own": {"truncate_dim": 8}},
    "unknown module": {"kinds": ("Transformer", "WeightedLayerPooling", "Pooling")},
    "layer after the normalisation": {"kinds": (*_USUAL, "Normalize", "Dense")},
    "linear layer before the pooling": {"kinds": ("Transformer", "Dense", "Pooling", "Dense")},
    "cross-encoder": {"kinds": _USUAL[:1], "own": {"model_type": "CrossEncoder"}},
    "no pooling module": {"kinds": _USUAL[:1]},
    "pooling by position": {"pooling": {"pooling_mode_weightedmean_tokens": True}},
    "chat template": {"bert": _MESSAGES},
    "adapter": {"adapter_config.json": {"peft_type": "LORA"}},
}


@pytest.mark.parametrize("folder", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_a_folder_does_and_this_program_does_not_is_refused(tmp_path, folder):
    with refusal(ArtifactError):
        read_settings(sentence_folder(tmp_path, **folder))


def test_length_never_exceeds_the_position_table(tmp_path):
    settings = read_settings(sentence_folder(tmp_path, bert={"max_seq_length": 4096}))
    assert settings.max_length == 128
    with refusal(ConfigError):
        settings.override(max_length=129)


def test_lower_casing_leaves_special_tokens_alone(tiny_bert, tmp_path):
    """As REALM's masks and the [SEP] of a layout; [mask] would be three pieces of a word."""
    folder = shutil.copytree(tiny_bert, tmp_path / "old")
    write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    cased, lowered = (TextTokenizer(read_settings(place)) for place in (tiny_bert, folder))
    [expected] = cased.passages([""], ["who wrote [MASK] [SEP] the danube"])
    assert lowered.passages([""], ["WHO wrote [MASK] [SEP] The Danube"]) == [expected]
    assert lowered.passages(["The Danube"], ["In"]) == cased.passages(["the danube"], ["in"])


def test_plain_folder_says_what_was_guessed(tmp_path):
    write_json(
        tmp_path / "config.json",
        {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1},
    )
    save_file({}, tmp_path / "model.safetensors")
    settings = read_settings(tmp_path)
    assert (settings.pooling, settings.max_length) == ("mean", 512)
    assert "vectors are the mean of their tokens'" in settings.guessed


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, ArtifactError), ("{", DataError), ("[]", ArtifactError), ("{}", ArtifactError)],
)
def test_not_an_encoder(tmp_path, content, error):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with refusal(error):
        read_settings(tmp_path)
