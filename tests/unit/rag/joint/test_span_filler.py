"""A reader that copies masked words out of passages, against plain computation; and what it
teaches.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from indexers.index import Index
from rag.joint.config import MlmTrainConfig, RealmTrainConfig
from rag.joint.sentences import MaskedSentence
from rag.joint.span_filler import SpanFiller
from retrievers.encoders.bi_encoder import BiEncoder
from tests.conftest import TinyModels
from tests.support.training import records
from tests.tiny_masks import NAMES, SMALL, TEXTS, draw_code, found_share, write_facts
from tests.unit.retrievers.training.test_ict import write_corpus


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny: TinyModels) -> Path:
    """A reader that has learnt to copy a name that stands in both sentences of a passage."""
    place = tmp_path_factory.mktemp("filler")
    draw = np.random.default_rng(3)
    tiny.bert(place / "bert", seed=5, max_position_embeddings=128)
    texts = []
    for name, other in zip(draw.choice(NAMES, 240), draw.choice(NAMES, 240), strict=True):
        one, two = (draw_code(draw) for _ in range(2))
        texts.append(
            f"Who wrote {one} in {name} rises? The river {one} {name} the river {two} {other}"
        )
    write_corpus(place / "corpus.jsonl", texts)
    settings = {**SMALL, "batch_size": 24, "validation_fraction": 0.2, "min_words": 3}
    config = MlmTrainConfig(
        out=place / "run",
        train_files=(place / "corpus.jsonl",),
        epochs=50,
        max_steps=200,
        learning_rate=3e-3,
        fills="span",
        reader=str(place / "bert"),
        **settings,
    )
    return config.train_model()


def test_words_are_worth_the_probability_of_their_spans(tmp_path: Path, tiny: TinyModels) -> None:
    folder = tiny.bert(tmp_path / "bert", seed=3)
    filler = SpanFiller.load(str(folder), max_tokens=32, guess=0.02).eval()
    filler.save(tmp_path / "whole", filler.state_dict())
    plain = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "whole").eval()
    cls, sep, mask = (
        getattr(filler.tokenizer, f"{name}_token_id") for name in ("cls", "sep", "mask")
    )
    continued = int(np.flatnonzero(filler._continues)[0])
    wanted = [20, 21]
    sentence = MaskedSentence(
        "", "", np.array([9, mask, mask, 10]), np.array([1, 2]), np.array(wanted)
    )
    passages = [
        [],
        [30, 31, 32],
        [30, *wanted, 31, *wanted],
        [*wanted, continued, 33],  # another word
        [33] * 40 + wanted,  # cut before the words
    ]
    with torch.no_grad():
        filled = filler.read([sentence], [passages])
        for k, passage in enumerate(passages):
            head = [cls, *sentence.ids.tolist(), sep]
            text = passage[: 32 - len(head) - 1]
            types = torch.tensor([[0] * len(head) + [1] * (len(text) + 1)])
            output = plain(torch.tensor([[*head, *text, sep]]), token_type_ids=types)
            inside = [0, *range(len(head), len(head) + len(text))]
            start, end = (
                dict(zip(inside, logits[0, inside].softmax(0).tolist(), strict=True))
                for logits in (output.start_logits, output.end_logits)
            )
            right = sum(
                start[a] * end[b]
                for a, b in product(inside, inside)
                if b == a + 1
                and text[a - len(head) : b - len(head) + 1] == wanted
                and text[b - len(head) + 1 : b - len(head) + 2] != [continued]
            )
            assert (right > 0) == (k == 2)
            assert float(filled.logp[0, k, 0]) == pytest.approx(
                np.log(0.98 * right + 0.02), abs=1e-5
            )
            objective = np.log(right) if right else np.log(start[0] * end[0]) if passage else 0.0
            assert float(filled.objective[0, k, 0]) == pytest.approx(objective, abs=1e-4)
        assert filled.logp.shape == (1, 5, 2)
        assert not filled.logp[..., 1].any()
        torch.testing.assert_close(filler([sentence], [passages]), filled.logp)


def test_it_learns_to_copy(trained: Path) -> None:
    last = records(trained.parent, "eval/utility")[-1]
    assert last["eval/utility"] > np.log(0.7 / 0.001)  # of two names in the passage, the right one
    assert last["eval/utility_after"] >= 0  # no passage is worth less than none
    filler = SpanFiller.load(str(trained), max_tokens=60, guess=0.001).eval()
    ids = filler.tokens(
        ["Who wrote e f g h in [MASK] rises?", "the river e f g h Forest the river k n o p Danube"]
    )
    mask = np.flatnonzero(np.array(ids[0]) == filler.tokenizer.mask_token_id)
    right, wrong = (
        float(
            filler([MaskedSentence("", "", np.array(ids[0]), mask, np.array(name))], [[ids[1]]])
            .detach()
            .exp()
        )
        for name in filler.tokens(["Forest", "Danube"])
    )
    assert right > 0.7 > 0.2 > wrong


def test_copying_teaches_to_retrieve(trained: Path, tmp_path: Path, tiny: TinyModels) -> None:
    """The question side alone, over a fixed index; both towers learn in the tests of REALM."""
    first = write_facts(tmp_path, tiny)
    config = RealmTrainConfig(
        out=tmp_path / "run",
        train_files=(tmp_path / "sentences.jsonl",),
        index=tmp_path / "index",
        documents=13,
        batch_size=12,
        epochs=20,
        learning_rate=1e-3,
        question_tokens=32,
        dropout=0.0,
        shared=False,
        fills="span",
        reader=str(trained),
        frozen="passage",
        train_reader=False,
        **SMALL,
    )
    after = BiEncoder.load(config.train_model(), precision="fp32")
    assert found_share(after) > found_share(first) + 0.15
    was, now = (encoder.encode_passages([""] * len(TEXTS), TEXTS) for encoder in (first, after))
    np.testing.assert_allclose(was, now, atol=1e-5)
    with Index.open(config.out / "index") as index:
        index.check_encoder(after.identity)
    shown = records(config.out)
    assert min(r["null"] for r in shown) > 0  # passages do no harm: the null document may stay
    assert np.mean([r["posterior_gold"] - r["p_gold"] for r in shown]) > 0
    SpanFiller.load(str(config.out / "mlm"), max_tokens=60, guess=0.001)
