"""One opener for every kind of reader: what a source is, and what is said of a source that is none."""

from pathlib import Path
from typing import Any

import pytest
from transformers import BertForQuestionAnswering

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
