"""Finished encoders, of any family: what was trained, what is exported, what sentence-transformers
reads.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rag.config import load_config
from rag.training.card import render_card
from rag.training.config import TrainConfig
from retrievers.encoders.export import write_encoder
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tower import Tower
from retrievers.training.config import BiEncoderConfig, DprTrainConfig
from retrievers.training.recipe import encoder_card


def _settings(folder: Path, **more: Any) -> EncoderSettings:
    return EncoderSettings(
        kind="transformers",
        weights_dir=folder,
        pooling="mean",
        normalize=True,
        max_length=48,
        **more,
    )


def test_equal_weights_give_equal_bytes_and_replace_what_was_there(
    tmp_path: Path, tiny_bert: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("old")
    settings = _settings(tiny_bert)
    tower = Tower.load(settings)
    folders = [write_encoder(tmp_path / name, tower, None, {}, settings) for name in "ab"]
    files = [
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders
    ]
    assert files[0] == files[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]  # nothing temporary is left


def test_the_card_says_what_was_done_and_no_path(tmp_path: Path) -> None:
    config = DprTrainConfig(
        out=tmp_path / "run",
        train_files=(tmp_path / "train.json",),
        index=tmp_path / "index",
        name="mine",
        question_encoder=str(tmp_path),
        layout="{text} {title}",
        query_prefix="",
    )
    settings = _settings(tmp_path, query_prefix="query: ")
    retriever: Any = SimpleNamespace(config=config, encoder_settings=settings)
    card = render_card(
        config, encoder_card(retriever), {"questions": 12}, {"nll": 0.123456, "top": {"1": 0.5}}
    )
    assert str(tmp_path) not in card
    for words in (
        "# mine",
        "rag train dpr --config FILE",
        "| nll | 0.1235 |",
        "| top | 1 0.5 |",
        "| questions | 12 |",
        "reads `query: ` before every question",
    ):
        assert words in card, words
    (tmp_path / "FILE.json").write_text(card.partition("```json")[2].partition("```")[0])
    stated = load_config(DprTrainConfig, tmp_path / "FILE.json", overrides={"out": "run"})
    assert stated.train_files == (Path("train.json"),)
    names = set(BiEncoderConfig.model_fields) - {*TrainConfig.model_fields, "index"}
    shown, encoders = (c.model_dump(include=names) for c in (stated, config))
    assert shown == {**encoders, "question_encoder": tmp_path.name}
    assert (stated.batch_size, stated.learning_rate) == (config.batch_size, config.learning_rate)
