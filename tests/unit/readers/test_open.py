"""One opener for every kind of reader: what a source is, and what is said of a source that is none."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForQuestionAnswering

from rag.core.errors import ArtifactError, MismatchedArtifactError
from readers import open as opening
from readers.extractive.reader import ExtractiveReader
from readers.open import ReaderKind, open_reader, reader_kind
from tests.tiny_reader import tiny_config, tiny_encoder, tiny_tokenizer


def made_up(source: str, **given: Any) -> tuple[str, dict[str, Any]]:
    """Stands in for another kind's opener."""
    return source, given


def test_a_question_answering_checkpoint_is_extractive(tmp_path: Path) -> None:
    BertForQuestionAnswering(tiny_config()).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert reader_kind(tmp_path) == "extractive"
    reader = open_reader(tmp_path, precision="fp32", question_tokens=32)
    assert isinstance(reader, ExtractiveReader)
    assert reader.settings.question_tokens == 32


def test_schemes_folders_and_architectures_name_a_kind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = ReaderKind(f"{__name__}:made_up", "a made-up one", ("made-up:",), ("BertModel",))
    monkeypatch.setitem(opening.KINDS, "made-up", kind)
    assert open_reader("made-up:x", precision="fp32", seed=3) == (
        "made-up:x",
        {"precision": "fp32", "device": "auto", "seed": 3},
    )
    (tmp_path / "reader.json").write_text('{"kind": "made-up"}')
    assert reader_kind(tmp_path) == "made-up"
    assert reader_kind(tiny_encoder(tmp_path / "encoder")) == "made-up"


def test_damaged_and_foreign_files_are_said_to_be_that(tmp_path: Path) -> None:
    BertForQuestionAnswering(tiny_config(vocab_size=40)).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(MismatchedArtifactError, match=r"tokenizer has \d+ tokens, the encoder 40"):
        open_reader(tmp_path)
    BertForQuestionAnswering(tiny_config()).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(ArtifactError, match="no question answering model could be loaded"):
        open_reader(tmp_path)


def test_what_is_no_reader_is_said_to_be_none(tmp_path: Path) -> None:
    encoder = tiny_encoder(tmp_path / "encoder")
    with pytest.raises(ArtifactError, match="found BertModel, expected a folder"):
        open_reader(encoder)
    with pytest.raises(ArtifactError, match=r"neither reader\.json nor config\.json"):
        open_reader(tmp_path)
    with pytest.raises(ArtifactError, match="no such folder"):
        open_reader(tmp_path / "absent")
    (tmp_path / "reader.json").write_text(json.dumps({"kind": "oracle"}))
    with pytest.raises(ArtifactError, match="kind 'oracle', expected one of extractive"):
        open_reader(tmp_path)
    (tmp_path / "reader.json").write_text('{"kind": "extr')
    with pytest.raises(ArtifactError, match=r"reader\.json"):
        open_reader(tmp_path)
