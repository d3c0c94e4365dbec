"""A corpus encoded on a cluster: the bytes of one process, whatever dies; other nodes are
refused.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indexers.embeddings import encode_corpus
from indexers.index import Index
from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.log import Progress
from rag.core.types import Passage
from rag.scale.cluster import connected
from rag.scale.encoding import encode_on_cluster
from retrievers.encoders.open import load_encoder
from tests.commands import run_command, run_successfully
from tests.support.hashing import content
from tests.unit.rag.scale.conftest import Nodes

WORDS = ["danube", "rhine", "river", "black", "forest", "sea", "rises", "the", "in"]
ROWS = 480
SHARD_ROWS = 16


def corpus(rows: int = ROWS, words: int = 400) -> Iterator[Passage]:
    draw = random.Random(5)
    for number in range(rows):
        yield Passage(f"p{number}", draw.choice(WORDS), " ".join(draw.choices(WORDS, k=words)))


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
    with writing_passages(tmp_path_factory.mktemp("store")) as writer:
        writer.add_many(corpus())
    return PassageStore(writer.directory)


def on_one(place: Path, passages: PassageStore, encoder: Path) -> None:
    encode_corpus(place, passages, load_encoder(encoder), "float16", shard_rows=SHARD_ROWS)


def on_cluster(
    nodes: Nodes,
    place: Path,
    passages: PassageStore,
    encoder: Path,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Encode, and call `check` after every shard."""

    class Watched(Progress):
        def update(self, n: int = 1) -> None:
            super().update(n)
            check()

    with connected(nodes.address) as ray, pytest.MonkeyPatch.context() as patch:
        patch.setattr("rag.scale.encoding.Progress", Watched)
        encode_on_cluster(
            ray, place, passages, load_encoder(encoder), "float16", shard_rows=SHARD_ROWS
        )


@pytest.mark.cluster
def test_the_command_builds_the_index_of_one_machine(
    nodes: Nodes, static_encoder: Path, tmp_path: Path
) -> None:
    documents = tmp_path / "corpus.jsonl"
    documents.write_text(
        "".join(f'{{"id": "{p.id}", "text": "{p.text}"}}\n' for p in corpus(100, 40))
    )
    command = ["index", documents, "--encoder", static_encoder, "--retriever", "dense"]
    command += ["--split", "none", "--shard-rows", "16", "--out"]
    for out, more in (("one", []), ("many", ["--ray", nodes.address])):
        run_successfully(*command, tmp_path / out, *more)
    assert content(tmp_path / "one") == content(tmp_path / "many")
    Index.open(tmp_path / "many", verify="deep").close()


@pytest.mark.cluster
def test_a_node_that_dies_while_encoding_costs_nothing(
    nodes: Nodes, static_encoder: Path, passages: PassageStore, tmp_path: Path
) -> None:
    on_one(tmp_path / "one", passages, static_encoder)
    nodes.start(2)
    killed = []

    def check() -> None:
        if not killed and len(list((tmp_path / "many").glob("shard-*.npy"))) > 4:
            nodes.kill()
            killed.append(len(list((tmp_path / "many").glob("shard-*.npy"))))

    on_cluster(nodes, tmp_path / "many", passages, static_encoder, check)
    assert killed[0] < ROWS / SHARD_ROWS
    assert content(tmp_path / "one") == content(tmp_path / "many")


@pytest.mark.cluster
def test_what_is_begun_on_a_cluster_goes_on_anywhere(
    nodes: Nodes, static_encoder: Path, passages: PassageStore, tmp_path: Path
) -> None:
    place = tmp_path / "many"

    def shards() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in place.glob("shard-*.npy")}

    def stop() -> None:
        if len(shards()) >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_cluster(nodes, place, passages, static_encoder, stop)
    begun = shards()
    assert 3 <= len(begun) < ROWS / SHARD_ROWS
    on_one(place, passages, static_encoder)
    assert begun.items() <= shards().items()
    on_one(tmp_path / "one", passages, static_encoder)
    assert content(tmp_path / "one") == content(place)


@pytest.mark.cluster
def test_nodes_that_would_differ_are_refused_by_name(
    nodes: Nodes,
    static_encoder: Path,
    passages: PassageStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(place: Path) -> None:
        on_cluster(nodes, place, passages, static_encoder)

    other = tmp_path / "packages"
    (other / "numpy-0.0.1.dist-info").mkdir(parents=True)
    (other / "numpy-0.0.1.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 0.0.1\n")
    path = os.pathsep.join([str(other), os.environ.get("PYTHONPATH", "")])
    nodes.start(2)
    nodes.start(3, env_vars={"PYTHONPATH": path})
    try:
        with pytest.raises(MismatchedArtifactError, match=r"\): numpy is 0\.0\.1, on this machine"):
            encode(tmp_path / "index")
    finally:
        nodes.forget()
    monkeypatch.chdir(tmp_path)  # the same path, and another folder for every process
    missing = r"/proc/self/cwd/here/\.shared.* is missing"
    with pytest.raises(MismatchedArtifactError, match=missing):
        encode(Path("/proc/self/cwd/here"))
    loaded: Any = load_encoder(static_encoder)
    loaded.identity = type(loaded.identity)(
        **{**loaded.identity.to_json(), "name": str(tmp_path / "gone")}
    )
    with connected(nodes.address) as ray, pytest.raises(ArtifactError, match="gone"):
        encode_on_cluster(
            ray, tmp_path / "third", passages, loaded, "float16", shard_rows=SHARD_ROWS
        )


def test_what_cannot_be_done_on_a_cluster_is_refused(tmp_path: Path) -> None:
    index = ("index", "sample", "--ray", "auto", "--out", tmp_path / "index")
    for option in (["--retriever", "bm25"], ["--reuse", "x"]):
        result = run_command(*index, *option)
        assert result.exit_code == ConfigError.exit_code
        assert "reuses none" in result.output
