"""Generations: published whole, found without waiting, pruned only when nobody reads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rag.core.errors import ArtifactError, ConfigError, IncompleteArtifactError
from rag.core.manifest import verify_files
from rag.training.refresh.generations import Generations


def writes(text: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / "deep").mkdir(exist_ok=True)
        (folder / "deep" / "data.txt").write_text(text)

    return build


def test_published_generations_count_up_and_keep_their_meta(tmp_path: Path) -> None:
    generations = Generations(tmp_path / "new")
    assert generations.newest() is None
    first = generations.publish(writes("a"), step=0, meta={"encoder": "x"})
    second = generations.publish(writes("b"), step=500)
    assert (first.number, second.number, second.step) == (1, 2, 500)
    assert generations.newest() == second
    assert generations.all() == [first, second]
    assert generations.find(first.version) == first
    assert first.meta == {"encoder": "x"}
    assert (second.path / "deep/data.txt").read_text() == "b"
    assert set(first.files) == {"deep/data.txt"}


def test_the_version_follows_from_the_content(tmp_path: Path) -> None:
    one, same, other = (
        Generations(tmp_path / name).publish(writes(text), step=3)
        for name, text in (("1", "a"), ("2", "a"), ("3", "b"))
    )
    assert one.version == same.version != other.version
    verify_files(one.path, one.files, deep=True)
    (one.path / "deep/data.txt").write_text("z")
    with pytest.raises(ArtifactError, match="checksum"):
        verify_files(one.path, one.files, deep=True)


def test_a_failed_build_changes_nothing(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    first = generations.publish(writes("a"), step=0)

    def fails(folder: Path) -> None:
        (folder / "half").write_text("…")
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="luck"):
        generations.publish(fails, step=1)
    assert generations.all() == [first]
    second = generations.publish(writes("b"), step=1)
    assert set(second.files) == {"deep/data.txt"}
    assert not list(tmp_path.glob(".staging-*"))


@pytest.mark.parametrize(("resume", "meta", "kept"), [(True, 1, True), (False, 1, False), (True, 2, False)])
def test_a_build_goes_on_only_for_the_same_step_and_meta(
    tmp_path: Path, resume: bool, meta: int, kept: bool
) -> None:
    generations = Generations(tmp_path)

    def dies(folder: Path) -> None:
        (folder / "shard-0").write_text("done")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generations.publish(dies, step=7, meta={"m": 1}, resume=True)
    found = []
    generations.publish(lambda f: found.extend(f.iterdir()), step=7, meta={"m": meta}, resume=resume)
    assert bool(found) == kept


def test_a_manifest_of_the_builder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sub-folder"):
        Generations(tmp_path).publish(lambda f: (f / "manifest.json").touch(), step=0)
    assert Generations(tmp_path).newest() is None


def test_prune_leaves_the_newest_and_what_is_held(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    published = [generations.publish(writes(str(n)), step=n) for n in range(5)]
    with generations.hold(published[1]) as held:
        assert generations.prune(keep=2) == [1, 3]
        assert (held.path / "deep/data.txt").read_text() == "1"
    assert [generation.number for generation in generations.all()] == [2, 4, 5]
    assert generations.prune(keep=1) == [2, 4]
    with pytest.raises(IncompleteArtifactError, match="no longer"), generations.hold(published[0]):
        raise AssertionError
    assert generations.find(published[0].version) is None


def test_prune_spares_what_is_pinned_whoever_pinned_it(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    published = [generations.publish(writes(str(step)), step=step) for step in range(4)]
    Generations(tmp_path).pin({published[1].version})
    assert generations.prune(keep=1) == [1, 3]
    assert generations.find(published[1].version) == published[1]
    generations.pin(())
    assert generations.prune(keep=1) == [2]


def test_publishing_leaves_the_pins_that_another_process_writes(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    writing, left = tmp_path / ".pinned.json.partial-x", tmp_path / ".other.json.partial-y"
    for path in (writing, left):
        path.write_text("[")
    generations.publish(lambda folder: (folder / "part").touch(), step=1)
    assert writing.exists()
    assert not left.exists()
