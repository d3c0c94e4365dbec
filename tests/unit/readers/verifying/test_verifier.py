"""The whole recipe on a tiny encoder: losses beside numpy, learning, storing, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from rag.config import load_config
from rag.core.errors import ArtifactError, ConfigError, DataError, RagError
from rag.core.types import VERDICT_LABELS
from rag.data.files.rows import write_json_lines
from rag.runtime.model_files import add_difference
from readers.open import open_reader
from readers.verifying import training
from readers.verifying.files import (
    SHIPPED_VERIFIER,
    difference,
    load_model,
    load_verifier_parts,
    save_verifier,
    start_model,
)
from readers.verifying.open import load_verifier
from readers.verifying.settings import VerifierTrainConfig
from readers.verifying.training import (
    LABELS,
    Pair,
    PairBatches,
    fit_temperature,
    log_likelihoods,
    verifier_loss,
)
from tests.support.messages import refusal
from tests.support.training import check_parts_sum_to_the_whole, figures_of
from tests.tiny_reader import WORDS, tiny_encoder

_PLACES = ("tower", "river")


def config(folder: Path, **settings: Any) -> VerifierTrainConfig:
    values: dict[str, Any] = {
        "train_files": [folder / "claims.jsonl"],
        "out": folder / "out",
        "encoder": str(folder / "encoder"),
        "max_tokens": 32,
        "tokens_per_batch": 512,
        "precision": "fp32",
        "threads": 1,
        "exchanged": 0.0,
        "held_out": 0.1,
    }
    return load_config(VerifierTrainConfig, overrides={**values, **settings})


def claim_file(path: Path, count: int) -> Path:
    """A claim names a place; evidence names the same, another, or none: neither alone tells."""
    draw = np.random.default_rng(3)
    records = []
    for number in range(count):
        said, other = draw.choice(_PLACES, 2, replace=False)
        label = VERDICT_LABELS[number % 3]
        shown = {"supported": said, "refuted": other, "not_enough": "city"}[label]
        noise = " ".join(draw.choice(WORDS[9:15], 2))
        stated = "not_supported" if label != "supported" and number % 2 else label
        evidence = [f"built {noise} {number}.", f"the {shown}."]
        records.append(
            {"id": str(number), "claim": f"the {said}", "label": stated, "evidence": evidence}
        )
    write_json_lines(path, records)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifier")
    tiny_encoder(folder / "encoder")
    claim_file(folder / "claims.jsonl", 900)
    config(folder, epochs=20, learning_rate=2e-3, exchanged=0.1).train_model()
    return folder


def test_it_learns_to_compare(trained: Path) -> None:
    figures = figures_of(trained / "out")
    assert figures["accuracy"] >= 85.0
    # The exported figures are those of the exported model, with its temperature.
    _, held_out = training._read_pairs(config(trained, exchanged=0.1))
    claims = [pair.claim for pair in held_out]
    logits, _ = load_model(trained / "out" / "verifier").logits(
        claims, [pair.evidence for pair in held_out]
    )
    labels = torch.tensor([pair.label for pair in held_out])
    of_labels = log_likelihoods(logits.detach() / figures["temperature"], labels)
    assert figures["nll"] == pytest.approx(-float(of_labels.mean()), abs=1e-4)
    verifier = load_verifier(trained / "out" / "verifier", precision="fp32")
    text = "built near in 7. the {}."
    evidence_of = [[text.format(shown)] for shown in ("tower", "tower", "city")]
    verdicts = verifier.judge(["the tower", "the river", "the river"], evidence_of)
    assert [verdict.label for verdict in verdicts] == list(VERDICT_LABELS)
    card = (trained / "out" / "verifier" / "README.md").read_text()
    assert "claim [SEP] evidence" in card


def test_a_verifier_is_trained_further_and_is_no_reader(trained: Path) -> None:
    folder = trained / "out" / "verifier"
    further = start_model(config(trained, encoder=str(folder)))
    stored = load_model(folder).state_dict()
    for name, tensor in further.state_dict().items():
        torch.testing.assert_close(tensor, stored[name])
    with refusal(ArtifactError):
        open_reader(folder)


def _pairs() -> list[Pair]:
    texts = ("the tower", "built near 7", "the river is in the city", "the castle")
    pairs = []
    for number, label in enumerate([*LABELS.values(), 0]):
        pairs.append(Pair(texts[number % 4], texts[(number + 1) % 4], label))
    return pairs


@pytest.mark.parametrize("share", [None, 0.3])
def test_the_loss_is_that_of_numpy(tmp_path: Path, share: float | None) -> None:
    tiny_encoder(tmp_path / "encoder")
    settings = {} if share is None else {"teacher": "x", "teacher_weight": share, "temperature": 3}
    stated = config(tmp_path, **settings)
    model = start_model(stated).eval()
    teacher = None if share is None else start_model(stated.replaced(seed=5)).eval()
    pairs = _pairs()
    claims = [pair.claim for pair in pairs]
    evidence = [pair.evidence for pair in pairs]
    with torch.no_grad():
        logits = model.logits(claims, evidence)[0].numpy().astype(float)
    scores = log_softmax(logits, axis=1)
    expected = 0.0
    for row, pair in zip(scores, pairs, strict=True):
        log_p = row[pair.label] if pair.label < 3 else np.log(np.exp(row[1:]).sum())
        expected -= log_p / len(pairs)
    if teacher is not None and share is not None:
        with torch.no_grad():
            taught = teacher.logits(claims, evidence)[0].numpy().astype(float) / 3
        p = softmax(taught, axis=1)
        divergence = (p * (np.log(p) - log_softmax(logits / 3, axis=1))).sum(1).mean()
        expected = (1 - share) * expected + share * 9 * divergence
    loss = verifier_loss(model, pairs, stated, teacher)
    assert float(loss.value.detach()) == pytest.approx(expected, abs=1e-5)


def test_the_parts_of_a_batch_sum_to_the_whole(tmp_path: Path) -> None:
    """As two processes divide it."""
    tiny_encoder(tmp_path / "encoder")
    stated = config(tmp_path)
    model = start_model(stated)
    pairs = _pairs()
    whole = verifier_loss(model, pairs, stated)
    parts = [verifier_loss(model, pairs[rank::2], stated) for rank in range(2)]
    assert whole.examples == len(pairs)
    check_parts_sum_to_the_whole(model, whole, parts)


def test_batches_hold_every_pair_once_an_epoch(tmp_path: Path) -> None:
    pairs = [Pair(f"claim {n}", "the tower " * (n % 7), n % 3) for n in range(200)]
    stated = config(tmp_path, tokens_per_batch=64, epochs=2)
    batches = [PairBatches(pairs, stated)[step] for step in range(len(PairBatches(pairs, stated)))]
    seen = sorted(pair.claim for batch in batches for pair in batch)
    assert seen == sorted(2 * [pair.claim for pair in pairs])
    assert max(map(len, batches)) > 1
    assert len(PairBatches(pairs, config(tmp_path, epochs=0.001))) == 1


def test_the_temperature_makes_the_labels_likeliest() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 3, generator=draw)
    labels = torch.multinomial(torch.softmax(logits, -1), 1, generator=draw)[:, 0]
    assert fit_temperature(4.0 * logits, labels) == pytest.approx(4.0, rel=0.1)


def test_a_difference_of_full_rank_gives_the_weights_back() -> None:
    draw = torch.Generator().manual_seed(1)
    base = {"m": torch.randn(6, 9, generator=draw), "same": torch.ones(2, 2), "b": torch.zeros(4)}
    change = torch.randn(6, 2, generator=draw) @ torch.randn(2, 9, generator=draw)
    state = {
        "m": base["m"] + change,
        "same": base["same"],
        "b": torch.ones(4),
        "new": torch.ones(3),
    }
    stored = difference(base, state, rank=2)
    assert sorted(stored) == ["b.whole", "m.left", "m.right", "new"]
    for name, tensor in add_difference(base, stored).items():
        torch.testing.assert_close(tensor, state[name])


def _with_record(**record: Any) -> Callable[[Path], dict[str, Any]]:
    def change(folder: Path) -> dict[str, Any]:
        write_json_lines(folder / "claims.jsonl", [{"id": "a", "claim": "the tower", **record}])
        return {}

    return change


REFUSED = {
    "no label": (_with_record(evidence=["the tower"]), DataError),
    "no evidence": (_with_record(label="supported"), DataError),
    "rank above those of the matrices": (lambda folder: {"rank": 4}, ConfigError),
    "more tokens than the encoder reads": (lambda folder: {"max_tokens": 400}, ConfigError),
    "teacher without reader.json": (
        lambda folder: {"teacher": str(folder / "none")},
        ArtifactError,
    ),
}


@pytest.mark.parametrize(("change", "error"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_is_refused(
    tmp_path: Path, change: Callable[[Path], dict[str, Any]], error: type[RagError]
) -> None:
    tiny_encoder(tmp_path / "encoder")
    claim_file(tmp_path / "claims.jsonl", 60)
    with refusal(error):
        config(tmp_path, **change(tmp_path)).train_model()


def test_another_base_is_refused(tmp_path: Path) -> None:
    model = start_model(config(tmp_path, encoder="shipped"))
    save_verifier(tmp_path / "v", model, model.state_dict(), name="v", rank=1)
    stated = json.loads((tmp_path / "v" / "reader.json").read_text())
    (tmp_path / "v" / "reader.json").write_text(json.dumps({**stated, "base_sha256": "0"}))
    with refusal(ArtifactError):
        load_verifier(tmp_path / "v")


def test_the_verifier_that_ships() -> None:
    size = sum(path.stat().st_size for path in SHIPPED_VERIFIER.iterdir())
    assert size <= 6e6
    card = (SHIPPED_VERIFIER / "README.md").read_text()
    assert load_verifier_parts(None).manifest.checksums["weights.int8.safetensors"] in card
    text = "The bridge was built in 1920 by Ann Lee. It is 90 meters long."
    claims = ["Ann Lee built the bridge.", "The bridge was built in 1987.", "Bo Ek sings in Rome."]
    verifier = load_verifier()
    assert verifier.version == load_verifier_parts(None).manifest.version
    verdicts = verifier.judge(claims, [[text]] * 3)
    assert [verdict.label for verdict in verdicts] == list(VERDICT_LABELS)
    assert verdicts[0].evidence is not None
    assert verdicts[0].evidence.supporting == ((0, 40),)
