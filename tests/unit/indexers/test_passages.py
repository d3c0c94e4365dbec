import resource
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexers import id_table
from indexers import passages as module
from indexers.ledger import hold_folder
from indexers.passage_writer import passages_digest, writing_passages
from indexers.passages import PassageStore
from rag.core.arrays import load_npy
from rag.core.errors import ArtifactError, DataError, ResourceError
from rag.core.types import Location, Passage
from tests.support.limits import limited
from tests.support.messages import refusal


def write(directory: Path, passages: list[Passage]) -> PassageStore:
    with writing_passages(directory) as writer:
        writer.add_many(passages)
    assert (len(writer), writer.digest) == passages_digest(passages)
    return PassageStore(directory)


def numbered(count: int) -> list[Passage]:
    return [Passage(f"doc:{n}", f"Title {n}", f"Text of number {n}.") for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 2500])
def test_store_returns_what_was_written(tmp_path: Path, count: int) -> None:
    passages = numbered(count)
    store = write(tmp_path, passages)
    assert list(store) == passages
    assert [p for batch in store.batches(700) for p in batch] == passages
    if count:
        rows = [count - 1, 0, count // 2]
        assert store.get_many(np.array(rows)) == [passages[row] for row in rows]
        assert store.ids(rows) == [passages[row].id for row in rows]
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("count", [3, 1024, 2500])
def test_locations_travel_with_passages_and_cost_others_nothing(tmp_path: Path, count: int) -> None:
    plain = numbered(count)
    several = Location("a.pdf", "ix", (), ((0, "ix"), (3, "1"), (200, "")))
    places = {count - 1: Location("a b/c.pdf", "xii", ("Guide", "Install")), count // 2: several}
    located = [replace(passage, location=places.get(row)) for row, passage in enumerate(plain)]
    store = write(tmp_path / "located", located)
    assert list(store) == located
    assert [p for batch in store.batches(700) for p in batch] == located
    write(tmp_path / "plain", plain)
    names = {file.name for file in (tmp_path / "plain").iterdir()}
    assert {file.name for file in (tmp_path / "located").iterdir()} - names == {
        "locations.arrow",
        "pages.arrow",
    }
    for name in names:  # an index of an older version differs in nothing
        assert (tmp_path / "plain" / name).read_bytes() == (
            tmp_path / "located" / name
        ).read_bytes()
    assert passages_digest(plain) != passages_digest(located)
    shutil.copy(tmp_path / "located" / "locations.arrow", tmp_path / "plain")
    write(tmp_path / "plain", plain)  # over what a build that was killed has left there
    assert list(PassageStore(tmp_path / "plain")) == plain
    write(tmp_path / "other", numbered(count + 1024))
    shutil.copy(tmp_path / "located" / "locations.arrow", tmp_path / "other")
    with refusal(ArtifactError):
        PassageStore(tmp_path / "other")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ids=st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=50))
def test_every_id_is_found_and_no_other(tmp_path: Path, ids: set[str]) -> None:
    passages = [Passage(name, name, name * 2) for name in ids]
    store = write(tmp_path, passages)
    for row, passage in enumerate(passages):
        assert store.row_of(passage.id) == row
        assert store[row] == passage
    assert store.row_of("".join(ids) + "?") is None


def test_colliding_hashes_are_told_apart_by_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_table, "hash64", lambda passage_id: len(passage_id))
    store = write(tmp_path, [Passage(name, "", "") for name in ("aa", "bb", "c", "dd")])
    assert [store.row_of(name) for name in ("aa", "bb", "c", "dd")] == [0, 1, 2, 3]
    assert store.row_of("ee") is None


def test_duplicate_ids_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with refusal(DataError), writing_passages(tmp_path) as writer:
        writer.add_many(Passage(name, "", "") for name in "aba")
    with pytest.raises(KeyboardInterrupt), writing_passages(tmp_path) as writer:
        writer.add_many(numbered(1500))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_where_open_files_are_lacking_nothing_is_called_damaged(tmp_path: Path) -> None:
    write(tmp_path, numbered(3))
    with limited(resource.RLIMIT_NOFILE, 0):
        with pytest.raises(ResourceError):
            load_npy(tmp_path / "id_rows.npy", dtype=np.int64)
        with pytest.raises(ResourceError):
            id_table.open_arrow(tmp_path / "ids.arrow", module.ID_SCHEMA)
        with pytest.raises(ResourceError):
            hold_folder(tmp_path, object())
    assert len(PassageStore(tmp_path)) == 3


@pytest.mark.parametrize("name", [module.ARROW_NAME, "ids.arrow"])
def test_a_flipped_byte_is_an_error_or_a_text_but_no_end_of_the_process(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, numbered(300))
    whole = (tmp_path / name).read_bytes()
    refused = 0
    for place in np.random.default_rng(0).integers(0, len(whole), 300).tolist():
        (tmp_path / name).write_bytes(
            whole[:place] + bytes([whole[place] ^ 128]) + whole[place + 1 :]
        )
        try:
            store = PassageStore(tmp_path)
            store.ids(range(300))
            store.get_many(range(300))
        except ArtifactError:
            refused += 1
    assert refused > 30
