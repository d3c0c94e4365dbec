"""A bi-encoder of one vector a token, as late interaction trains it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from retrievers.encoders.vectors import Vectors
from retrievers.training.bi_encoder import BiEncoderModel, load_model
from retrievers.training.config import DprTrainConfig
from tests.spelled import SpelledIds


def bi_encoder(folder: Path, passages: Path | None = None, **settings: Any) -> BiEncoderModel:
    """The model that training starts from, of one folder or two."""
    names = {
        "question_encoder": str(folder),
        "passage_encoder": None if passages is None else str(passages),
    }
    config = DprTrainConfig(out="run", train_files=("train.json",), **names, **settings)
    return load_model(config, "cpu").model


class _TokenTower(torch.nn.Module):
    """The tower's encoder without pooling: unit vectors of all tokens."""

    def __init__(self, tower: Any) -> None:
        super().__init__()
        self.encoder = tower.encoder
        self.dim = tower.dim

    def forward(self, texts: Sequence[Any], *, question: bool = False) -> Vectors:
        """Vectors of token sequences."""
        ids = pad_sequence([torch.tensor(text).long() for text in texts], batch_first=True)
        lengths = torch.tensor([len(text) for text in texts])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        hidden = self.encoder(input_ids=ids, attention_mask=mask.long())[0]
        return Vectors.of_tokens(normalize(hidden, dim=-1), mask)

    def to_compute(self, dtype: torch.dtype) -> None:
        """Compute in `dtype`, as a tower does."""
        self.encoder.to(dtype)


def token_model(folder: Path, **settings: Any) -> BiEncoderModel:
    """A shared tower of token vectors; scores are MaxSim."""
    model = bi_encoder(
        folder, shared=True, normalize=True, question_tokens=16, passage_tokens=32, **settings
    )
    tower: Any = _TokenTower(model.question)
    return spelled(BiEncoderModel(tower, tower, model.settings, scale=model.scale)).train()


def spelled(model: BiEncoderModel) -> BiEncoderModel:
    """The model, reading texts that spell their token ids."""
    model.tokenizer = cast("Any", SpelledIds())
    return model
