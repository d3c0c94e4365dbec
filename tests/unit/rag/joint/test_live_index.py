"""A held index: searched by new questions, replaced by what a refresh makes; a kill loses a shard."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from indexers.build import build_index
from indexers.embeddings import encode_corpus
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.joint.live_index import LiveIndex, index_refresher
from rag.training.refresh import Refreshed
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.ance import AnceTrainConfig
from tests.conftest import TinyModels

PASSAGES = [Passage(str(n), "title", f"the river {a} {b} text") for n, (a, b) in enumerate(
    (a, b) for a in "abcdef" for b in "ghijk"
)]  # fmt: skip


def test_what_a_refresh_makes_is_searched(
    tmp_path: Path, tiny: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, later = (BiEncoder.load(tiny.bert(tmp_path / str(n), seed=n), precision="fp32") for n in range(2))
    build_index(PASSAGES, tmp_path / "index", encoder=start, settings=BuildSettings(probes=8))
    config = AnceTrainConfig(
        out=tmp_path / "run", train_files=("none",), index=tmp_path / "index", precision="fp32"
    )
    shutil.copytree(tmp_path / "1", tmp_path / "snapshot" / "encoder")
    questions = torch.from_numpy(np.random.default_rng(0).normal(size=(5, later.dim)))
    texts = [passage.text for passage in PASSAGES]
    titles = [passage.title for passage in PASSAGES]
    encoded: list[int] = []
    encode = BiEncoder.encode_passages

    def counted(self: BiEncoder, titles: Any, texts: Any) -> Any:
        if len(encoded) == 1 and fails:
            raise KeyboardInterrupt
        encoded.append(len(texts))
        return encode(self, titles, texts)

    refresher = index_refresher(config, "cpu", partial(encode_corpus, shard_rows=8))
    result = tmp_path / "result"
    result.mkdir()
    with Index.open(tmp_path / "index") as index:
        with monkeypatch.context() as patched:
            patched.setattr(BiEncoder, "encode_passages", counted)
            fails = True
            with pytest.raises(KeyboardInterrupt):  # as good as killed: after the first shard
                refresher(tmp_path / "snapshot", result)
            encoded.clear()
            fails = False
            refresher(tmp_path / "snapshot", result)
        assert encoded == [8, 8, 6]  # the first shard was kept

        holder = LiveIndex(index)
        for vectors, use in ((start, None), (later, Refreshed(result, 5, "v"))):
            if use is not None:
                holder.take_up(use)
            scores = questions.float().numpy() @ vectors.encode_passages(titles, texts).T
            best = np.argsort(-scores, axis=1, kind="stable")[:, :4]
            assert holder.search(questions, 4).tolist() == best.tolist()
        shutil.rmtree(result / "embeddings")  # what is held stays mapped
        assert holder.search(questions, 4).tolist() == best.tolist()

    build_index(PASSAGES, tmp_path / "words", settings=BuildSettings(retriever="bm25"))
    with Index.open(tmp_path / "words") as words, pytest.raises(ConfigError, match="no vectors"):
        LiveIndex(words)
