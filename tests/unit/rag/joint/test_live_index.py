"""A held index: searched by new questions, swapped for what a refresher publishes; a kill loses a shard."""

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
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import read_json
from rag.core.types import Passage
from rag.joint.live_index import IndexRefresher, LiveIndex
from rag.training.refresh.generations import Generations
from rag.training.refresh.refresher import RefreshStopped
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.config import AnceTrainConfig
from tests.conftest import TinyModels

PASSAGES = [Passage(str(n), "title", f"the river {a} {b} text") for n, (a, b) in enumerate(
    (a, b) for a in "abcdef" for b in "ghijk"
)]  # fmt: skip


def test_what_a_refresher_publishes_is_searched(
    tmp_path: Path, tiny: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, later = (BiEncoder.load(tiny.bert(tmp_path / str(n), seed=n), precision="fp32") for n in range(2))
    build_index(PASSAGES, tmp_path / "index", encoder=start, settings=BuildSettings(probes=8))
    config = AnceTrainConfig(
        out=tmp_path / "run", train_files=("none",), index=tmp_path / "index", probe_questions=6,
        probe_passages=9, poll_s=0.01, precision="fp32",
    )  # fmt: skip
    questions = torch.from_numpy(np.random.default_rng(0).normal(size=(5, later.dim)))
    texts = [passage.text for passage in PASSAGES]
    titles = [passage.title for passage in PASSAGES]
    encoded: list[int] = []

    class Counted:
        def __init__(self, encoder: BiEncoder) -> None:
            self.identity, self.dim, self.encode_queries = (
                encoder.identity,
                encoder.dim,
                encoder.encode_queries,
            )
            self._encoder = encoder

        def encode_passages(self, titles: Any, texts: Any) -> Any:
            encoded.append(len(texts))
            return self._encoder.encode_passages(titles, texts)

    with Index.open(tmp_path / "index") as index:
        load = BiEncoder.load
        monkeypatch.setattr(BiEncoder, "load", lambda *a, **k: Counted(load(*a, **k)))
        refresher = IndexRefresher(config, index, encode=partial(encode_corpus, shard_rows=8))
        snapshots = Generations(tmp_path / "run" / "snapshots")
        for step, folder in enumerate(("0", "1")):
            snapshots.publish(
                lambda to, f=folder: shutil.copytree(tmp_path / f, to / "encoder"),  # type: ignore[misc]
                step=step + 3,
                meta={"key": refresher.key},
            )
            if step == 0:
                first = refresher.refresh(snapshots.newest(), before=None)  # type: ignore[arg-type]
                same = read_json(first.path / "figures.json")  # against what training starts with
                assert same["refresh/age_steps"] == 3
                assert same["refresh/overlap"] == pytest.approx(1.0)
                assert same["refresh/cosine"] == pytest.approx(1.0, abs=1e-5)
        encoded.clear()
        refresher.check = lambda: (_ for _ in ()).throw(RefreshStopped)  # type: ignore[method-assign]
        with pytest.raises(RefreshStopped):  # as good as killed: after the first shard
            refresher.refresh(snapshots.newest(), before=first)  # type: ignore[arg-type]
        refresher.check = lambda: None  # type: ignore[method-assign]
        published = refresher.refresh(snapshots.newest(), before=first)  # type: ignore[arg-type]
        assert encoded == [8, 8, 8, 6]  # the first shard was kept

        holder = LiveIndex(index)
        for vectors, use in ((start, None), (later, published)):
            if use is not None:
                figures = holder.take_up(use)
                assert figures["refresh/age_steps"] == 1
                assert figures["refresh/cosine"] < 0.99
                assert holder.version == published.version
            scores = questions.float().numpy() @ vectors.encode_passages(titles, texts).T
            best = np.argsort(-scores, axis=1, kind="stable")[:, :4]
            assert holder.search(questions, 4).tolist() == best.tolist()
        shutil.rmtree(published.path)  # as a prune would: what is held stays mapped
        assert holder.search(questions, 4).tolist() == best.tolist()

        build_index(PASSAGES[:20], tmp_path / "other", encoder=start, settings=BuildSettings(probes=8))
        with Index.open(tmp_path / "other") as other, pytest.raises(MismatchedArtifactError, match="corpus"):
            LiveIndex(other).take_up(first)
    build_index(PASSAGES, tmp_path / "words", settings=BuildSettings(retriever="bm25"))
    with Index.open(tmp_path / "words") as words, pytest.raises(ConfigError, match="no vectors"):
        LiveIndex(words)
