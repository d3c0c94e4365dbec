"""A static encoder: the fit against a solver, what training teaches, resuming, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.files import read_json
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, write_examples
from rag.training.refresh import Refreshed
from retrievers.encoders.open import load_encoder, load_like
from retrievers.encoders.static import StaticEncoder
from retrievers.examples.batches import Epochs, RetrieverBatches
from retrievers.examples.data import ExampleTable, split_examples
from retrievers.training.recipe import examples_key
from retrievers.training.static import train_static
from retrievers.training.static_config import StaticTrainConfig
from retrievers.training.static_start import fit_tokens, frequency_weights, principal_axes
from retrievers.training.static_teacher import TeacherTargets, teacher_vectors


def examples(count: int, seed: int = 2) -> list[Example]:
    """A question names letters; its passage holds the digit of each: no word is shared."""
    draw = np.random.default_rng(seed)
    codes = sorted({"".join(sorted(draw.choice(list("abcdefghij"), 3, replace=False))) for _ in range(count)})
    made = []
    for code in codes:
        digits = " ".join(str("abcdefghij".index(letter)) for letter in code)
        passage = Passage(f"p{code}", "title", f"The river {digits} text. It rises in the black forest.")
        made.append(Example.labelled(f"q{code}", f"who wrote {' '.join(code)}", (), [passage]))
    return made


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> tuple[Path, Path, list[Example]]:
    """An index by the teacher, a file of training examples, and the examples."""
    folder, made = tmp_path_factory.mktemp("taught"), examples(140)
    passages = [example.positives[0] for example in made]
    teacher = load_encoder(tiny_bert, pooling="mean", normalize=True)
    build_index(passages, folder / "index", encoder=teacher, settings=BuildSettings(probes=2))
    write_examples(folder / "train.json", made)
    return folder / "index", folder / "train.json", made


def config(out: Path, index: Path, train: Path | None, **settings: Any) -> StaticTrainConfig:
    usual: dict[str, Any] = {
        "dim": 16, "batch_size": 16, "epochs": 8, "fit_steps": 4, "threads": 1, "validation_fraction": 0.2,
        "select_by": "last", "log_every_steps": 1, "sentences": 0.2,
    }  # fmt: skip
    files = () if train is None else (train,)
    return StaticTrainConfig(out=out, index=index, train_files=files, **{**usual, **settings})


def test_the_fit_is_the_solution_of_the_normal_equations() -> None:
    draw = np.random.default_rng(5)
    dense = draw.random((30, 8)).astype(np.float32) * (draw.random((30, 8)) < 0.4)
    dense[:, 7] = 0  # a token that no passage holds
    targets, start = (draw.normal(size=(n, 3)).astype(np.float32) for n in (30, 8))
    found = fit_tokens(csr_matrix(dense), targets, start, 0.1, steps=12)
    wanted = np.linalg.solve(dense.T @ dense + 0.1 * np.eye(8), dense.T @ targets + 0.1 * start)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    np.testing.assert_allclose(found[7], start[7], atol=1e-6)


def test_axes_keep_inner_products_and_frequent_tokens_weigh_less() -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32) @ np.eye(
        3, 7, dtype=np.float32
    )
    kept = vectors @ principal_axes(vectors, 3)
    np.testing.assert_allclose(kept @ kept.T, vectors @ vectors.T, atol=1e-4)
    np.testing.assert_allclose(frequency_weights(np.array([0, 1, 3]), 0.25), [1.0, 0.5, 0.25])


def test_it_learns_to_find_passages_of_questions_it_never_saw(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]]
) -> None:
    index, train, _ = taught
    untrained = train_static(config(tmp_path / "before", index, train, learning_rate=1e-9, max_steps=1))
    before, after = (tmp_path / name / "figures.json" for name in ("before", "run"))
    finished = train_static(
        config(tmp_path / "run", index, train, learning_rate=0.02, epochs=20, stored="int8")
    )
    ranks = [read_json(path)["figures"]["average_rank"] for path in (before, after)]
    mrr = [read_json(path)["figures"]["mrr"] for path in (before, after)]
    assert ranks[1] < 0.3 * ranks[0], ranks
    assert mrr[1] > 2 * mrr[0], mrr
    assert isinstance(load_encoder(finished), StaticEncoder)
    assert isinstance(load_encoder(untrained), StaticEncoder)
    card = (finished / "README.md").read_text()
    assert "static encoder" in card
    assert "`rag train static" in card
    assert "--encoder FOLDER " in card  # and not the name of a preset


def test_the_corpus_alone_teaches_too(tmp_path: Path, taught: tuple[Path, Path, list[Example]]) -> None:
    index, _, _ = taught
    corpus = tmp_path / "more.jsonl"
    corpus.write_text(
        "".join(
            f'{{"id": "{n}", "text": "The river {n} rises here. In the forest {n} it ends."}}\n'
            for n in "abcd"
        )
    )
    finished = train_static(
        config(tmp_path / "run", index, None, corpus=(corpus,), batch_size=4, max_steps=2)
    )
    assert load_encoder(finished).dim == 16
    assert read_json(tmp_path / "run" / "figures.json")["figures"] == {}


def test_settings_that_change_before_the_first_checkpoint_count(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]]
) -> None:
    index, _, _ = taught

    def trained(name: str, **settings: Any) -> np.ndarray:
        usual: dict[str, Any] = {"max_steps": 1, "learning_rate": 1e-9, **settings}
        return StaticEncoder.load(train_static(config(tmp_path / name, index, None, **usual))).vectors

    first = trained("run", fit_steps=0)
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # as if it had been stopped before the first one
    again = trained("run", fit_steps=4)
    assert not np.allclose(again, first, atol=1e-3)
    np.testing.assert_allclose(again, trained("other", fit_steps=4), atol=1e-5)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert trained("run", dim=8).shape[1] == 8


def test_what_cannot_work_is_refused(tmp_path: Path, taught: tuple[Path, Path, list[Example]]) -> None:
    index, train, made = taught
    with pytest.raises(ConfigError, match=r"dim is 64, and the vectors of .* have 32 dimensions"):
        train_static(config(tmp_path / "a", index, train, dim=64))
    words = BuildSettings(retriever="bm25")
    build_index([made[0].positives[0]], tmp_path / "bm25", settings=words)
    with pytest.raises(ConfigError, match="no vector per passage to learn from"):
        train_static(config(tmp_path / "a", tmp_path / "bm25", train))
    with pytest.raises(ValueError, match="nothing to learn from"):
        config(tmp_path / "a", index, None, sentences=0)
    with pytest.raises(ConfigError, match="no question of a batch of 16 has a mined negative"):
        train_static(config(tmp_path / "b", index, train, loss="pairwise"))
    for settings in ({"refresh_every_steps": 5}, {"loss": "teacher"}):
        with pytest.raises(ValueError, match="give train_files"):
            config(tmp_path / "a", index, None, **settings)
    with pytest.raises(ValueError, match='nll_weight belongs to loss "teacher", and loss is in_batch'):
        config(tmp_path / "a", index, train, nll_weight=0.5)
    with pytest.raises(ValueError, match=r"hard_negatives \(0\) are drawn from kept"):
        config(tmp_path / "a", index, train, refresh_every_steps=5, hard_negatives=0)


def test_refreshed_negatives_are_those_its_own_vectors_rank_high(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]]
) -> None:
    index, train, _ = taught
    settings = {
        "refresh_every_steps": 6,
        "max_steps": 8,
        "depth": 12,
        "kept": 5,
        "learning_rate": 0.02,
    }
    run = config(tmp_path / "run", index, train, **settings)
    train_static(run)
    records = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert [record["index_age_steps"] for record in records if "index_age_steps" in record][4:8] == [
        5,
        6,
        1,
        2,
    ]

    split = split_examples(run, run.out / "data")
    asked = list(split.training)
    last = run.out / "refresh" / "step-00000006"
    encoder, mined = StaticEncoder.load(last / "snapshot" / "encoder"), Refreshed.open(last)
    with Index.open(index) as opened:
        passages = opened.passages.get_many(np.arange(len(opened.passages)))
        assert mined.key == examples_key(split, opened)
    vectors = encoder.encode_passages([p.title for p in passages], [p.text for p in passages])
    scores = encoder.encode_queries([example.query for example in asked]) @ vectors.T
    table = np.load(mined.path / "negatives.npy")
    for number, example in enumerate(asked):
        ranked = np.argsort(-scores[number], kind="stable")[:12]
        gold = {passage.text for passage in example.positives}
        wanted = [row for row in ranked.tolist() if passages[row].text not in gold][:5]
        found = [row for row in table[number].tolist() if row >= 0]
        close = scores[number, found], scores[number, wanted]  # vectors are searched as float16
        np.testing.assert_allclose(*close, atol=2e-3)
        assert not {passages[row].text for row in found} & gold


@pytest.mark.parametrize("loss", ["in_batch", "pairwise"])
def test_it_learns_with_negatives_it_mines_itself(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]], loss: str
) -> None:
    index, train, _ = taught
    settings = {"batch_size": 8, "max_steps": 90, "epochs": 30, "learning_rate": 0.02, "sentences": 0.0}
    run = config(
        tmp_path / "run", index, train, loss=loss, refresh_every_steps=30, depth=20, kept=5, **settings
    )
    finished = train_static(run)
    records = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    before = next(record["held_out/mrr"] for record in records if "held_out/mrr" in record)
    assert read_json(run.out / "figures.json")["figures"]["mrr"] > 2 * before
    assert len({record["index_version"] for record in records if "index_version" in record}) == 3
    assert "mined anew every 30 steps" in (finished / "README.md").read_text()


def test_a_teachers_targets_are_its_own_scores(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]]
) -> None:
    """Vectors of passages of the index are its own, others are encoded; a second start reads them."""
    index, _, made = taught
    far = Passage("far", "elsewhere", "A lake that the index does not hold, by 3 hills.")
    asked = [
        replace(made[0], id="new", candidates=(*made[0].candidates, Candidate(far, "hard_negative"))),
        *made[1:20],
    ]
    with Index.open(index) as opened:
        teacher = load_like(opened.embeddings.encoder)
        data = ExampleTable.of(asked)
        vectors = teacher_vectors(teacher, opened, data, tmp_path, "k")
        again = teacher_vectors(teacher, opened, ExampleTable.of(asked[:1]), tmp_path, "k")
        np.testing.assert_array_equal(vectors[2], again[2])
    targets = TeacherTargets(*vectors, temperature=0.1)
    batches = RetrieverBatches(data, Epochs(len(data), 20), hard_negatives=1, targets=targets)
    batch = batches[0]
    questions = teacher.encode_queries([asked[row].query for row in batch.examples])
    shown = batch.passages
    assert far in shown
    passages = teacher.encode_passages([p.title for p in shown], [p.text for p in shown])
    wanted = questions @ passages.T / 0.1
    assert batch.targets is not None
    np.testing.assert_allclose(batch.targets, wanted, atol=0.02)  # of vectors kept as float16


def test_it_learns_from_the_teachers_scores_alone(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]]
) -> None:
    """With labels that say nothing, its vectors come to rank as the teacher's do."""
    index, train, _ = taught

    def agreement(folder: Path) -> float:
        student = StaticEncoder.load(folder)
        with Index.open(index) as opened:
            teacher = load_like(opened.embeddings.encoder)
            passages = opened.passages.get_many(np.arange(len(opened.passages)))
        texts = [p.title for p in passages], [p.text for p in passages]
        asked = [f"who wrote {letter}" for letter in "abcdefghij"]
        of = [each.encode_questions(asked) @ each.encode_passages(*texts).T for each in (teacher, student)]
        return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(*of, strict=True)]))

    usual = {"loss": "teacher", "sentences": 0.0, "fit_steps": 0}
    before = agreement(train_static(config(tmp_path / "a", index, train, learning_rate=1e-9, **usual)))
    after = agreement(
        train_static(config(tmp_path / "b", index, train, learning_rate=0.03, epochs=30, **usual))
    )
    assert after > before + 0.2, (before, after)
