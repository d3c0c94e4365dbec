"""One opener for every kind of reader: what a source is."""

from pathlib import Path

from transformers import BertForQuestionAnswering

from readers.extractive.reader import ExtractiveReader
from readers.open import open_reader, reader_kind
from tests.tiny_causal import causal_folder
from tests.tiny_generator import tiny_generator
from tests.tiny_reader import tiny_config, tiny_reader, tiny_tokenizer


def test_schemes_folders_and_architectures_name_a_kind(tmp_path: Path) -> None:
    checkpoint = tmp_path / "qa#1"  # is no setting
    BertForQuestionAnswering(tiny_config()).save_pretrained(checkpoint)
    tiny_tokenizer().save_pretrained(checkpoint)
    sources = {
        "extractive": (None, checkpoint, tiny_reader(tmp_path)),
        "endpoint": ("openai:http://localhost/v1#m",),
        "llm": (causal_folder(tmp_path / "causal"), f"{tmp_path / 'causal'}#passages=5"),
        "generative": (tiny_generator(tmp_path / "t5", "t5"),),
    }
    for kind, places in sources.items():
        assert {reader_kind(place) for place in places} == {kind}
    reader = open_reader(checkpoint, precision="fp32", question_tokens=32)
    assert isinstance(reader, ExtractiveReader)
    assert reader.settings.question_tokens == 32
