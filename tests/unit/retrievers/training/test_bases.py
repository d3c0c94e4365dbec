"""Encoders of today's shapes are trained, killed, resumed and exported; sentence-transformers reads
them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training import recipe
from retrievers.training.config import DprTrainConfig
from tests.worlds import killed_at

_TEXTS = ["who wrote the text", "the danube rises in the black forest"]


def _train(out: Path, examples: Path, start: Path, base: str) -> Path:
    how: dict[str, Any] = {"pooling": "mean"}
    if base == "qwen3":  # an instruction before questions, the last token, adapters
        how = {"pooling": "lasttoken", "query_prefix": "who wrote: ", "lora": 4}
    config = DprTrainConfig(
        out=out,
        train_files=(examples,),
        question_encoder=str(start),
        normalize=True,
        **how,
        question_tokens=16,
        passage_tokens=24,
        batch_size=8,
        epochs=3,
        max_steps=20,
        learning_rate=1e-3,
        precision="fp32",
        dropout=0.0,
        hard_negatives=0,
        validation_questions=8,
        save_every_s=0.0,
    )
    return config.train_model()


@pytest.mark.parametrize("base", ["mpnet", "modernbert", "qwen3", "xlm-roberta"])
def test_a_base_is_trained_resumed_and_read_elsewhere(
    tiny: Any, tmp_path: Path, cipher_file: Callable[..., Path], base: str
) -> None:
    start = tiny.base(tmp_path / "start", base)
    arguments = cipher_file(64), start, base
    killed_at(recipe, "contrastive_step", 11, _train, tmp_path / "run", *arguments)
    folder = _train(tmp_path / "run", *arguments)

    encoder = BiEncoder.load(folder, precision="fp32")
    peer = SentenceTransformer(str(folder), device="cpu")
    questions = encoder.encode_questions(_TEXTS)
    np.testing.assert_allclose(questions, peer.encode_query(_TEXTS), atol=1e-5)
    np.testing.assert_allclose(
        encoder.encode_passages(["", ""], _TEXTS), peer.encode_document(_TEXTS), atol=1e-5
    )
    how = {"pooling": encoder.identity.pooling, "query_prefix": encoder.identity.query_prefix}
    before = BiEncoder.load(start, precision="fp32", normalize=True, **how).encode_questions(_TEXTS)
    assert np.abs(questions - before).max() > 1e-3
    if base == "qwen3":
        assert not any(".lora_" in name for name in AutoModel.from_pretrained(folder).state_dict())
        assert (
            np.abs(questions - encoder.encode_passages(["", ""], _TEXTS)).max() > 1e-3
        )  # the instruction
