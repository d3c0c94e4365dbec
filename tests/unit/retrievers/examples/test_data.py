import dataclasses
import gzip
import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from rag.core.errors import ArtifactError, ConfigError, DataError
from rag.core.types import Passage, Query
from rag.data.examples import (
    Candidate,
    Example,
    read_examples,
    write_examples,
)
from retrievers.encoders.settings import read_settings
from retrievers.examples.batches import Epochs, RetrieverBatches
from retrievers.examples.data import TrainingSet, gather, read_lists, row_lists, write_lists
from retrievers.examples.tokens import RetrieverTokenizer


def passage(n):
    return Passage(f"p{n}", f"Title {n}", f"the river {n} rises in the forest")


def examples(count=12):
    return [
        Example.labelled(
            f"q{n}", f"who wrote {n}", (f"answer{n}",), (passage(n),),
            [
                Candidate(passage(100 + (n + k) % 7), "hard_negative", "bm25", k + 1, 9.5 - k)
                for k in range(4)
            ],
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    settings = read_settings(tiny_bert).override(layout="pair")
    return RetrieverTokenizer(settings.override(max_length=12), settings.override(max_length=24))


def test_written_examples_read_back(tmp_path):
    path = tmp_path / "train.json"
    assert write_examples(path, examples()) == 12
    assert list(read_examples(path)) == examples()
    record = json.loads(path.read_text())[0]
    assert record["hard_negative_ctxs"][0] == {
        "passage_id": "p100", "title": "Title 100", "text": passage(100).text,
        "source": "bm25", "rank": 1, "score": 9.5,
    }  # fmt: skip


def test_what_a_file_says_besides_is_kept_and_overrides_nothing(tmp_path):
    context = {"text": "x", "title": "T", "title_score": 1, "has_answer": True}
    record = {"id": "", "question": "a", "target": "b", "set": 7, "positive_ctxs": [context]}
    path = tmp_path / "train.json"
    path.write_text(json.dumps([{"question": "z", "positive_ctxs": [context]}, record]))
    read = list(read_examples(path))
    assert (read[1].id, read[1].answers, read[1].target_answer) == ("q2", ("b",), "b")
    write_examples(path, read[1:])
    assert list(read_examples(path)) == [dataclasses.replace(read[1], meta={"set": 7})]
    lists = {"positive_ctxs": [context], "negative_ctxs": [], "hard_negative_ctxs": []}
    assert json.loads(path.read_text()) == [{**record, "id": "q2", "answers": ["b"], **lists}]


def test_dpr_files(tmp_path, caplog):
    path = tmp_path / "train.json.gz"
    context = {"title": "T", "text": "x", "score": "11.5", "psg_id": 7}
    records = [
        {"question": "a", "answers": ["1"], "positive_ctxs": [context], "hard_negative_ctxs": [],
         "negative_ctxs": [{**context, "text": "y"}]},
        {"question": "b", "answers": [], "positive_ctxs": [], "hard_negative_ctxs": [context]},
        {"question": "c", "answer": "2", "positive_ctxs": [{"text": "no title"}]},
    ]  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(records).encode()))
    with caplog.at_level(logging.WARNING):
        found = list(read_examples(path))
    assert [example.id for example in found] == ["q1", "q3"]
    assert found[0].positives == (Passage("7", "T", "x"),)
    assert found[0].negatives == (Candidate(Passage("7", "T", "y"), "hard_negative", "", None, 11.5),)
    assert found[1].answers == ("2",)
    assert "1 questions without a positive passage left out" in caplog.text


def test_fid_files_and_what_a_method_needs(tmp_path):
    contexts = [{"id": "7", "title": "T", "text": "x", "score": "2.5"}, {"id": "8", "title": "", "text": "y"}]
    aimed = [{**context, "target": n - 0.5} for n, context in enumerate(contexts)]
    records = [
        {"id": "a", "question": "who?", "target": "1", "ctxs": contexts},
        {"id": "b", "question": "when?", "answers": ["2", "3"], "ctxs": aimed, "query_ctxs": contexts[:1]},
        {"id": "c", "question": "why?", "answers": []},
    ]
    path = tmp_path / "fid.json"
    path.write_text(json.dumps(records))
    first, second, third = read_examples(path, needs="questions")
    one = Candidate(Passage("7", "T", "x"), "retrieved", score=2.5)
    assert (first.answers, first.candidates[0], third.candidates) == (("1",), one, ())
    assert [candidate.target for candidate in second.candidates] == [-0.5, 0.5]
    assert second.query == Query("when?", (Passage("7", "T", "x"),))
    assert [e.id for e in read_examples(path, needs="targets")] == ["b"]
    with pytest.raises(DataError, match=r"(?s)no question with a positive passage.*`rag mine` makes"):
        list(read_examples(path))
    write_examples(tmp_path / "again.json", [second])
    assert list(read_examples(tmp_path / "again.json", needs="targets")) == [second]
    path.write_text(json.dumps([{"question": "a", "ctxs": [{"text": "x", "target": "NaN"}]}] * 2))
    with pytest.raises(DataError, match="target of a passage is nan, expected a finite number"):
        list(read_examples(path, needs="targets"))


def test_a_query_holds_its_passages_and_targets_their_rows(tiny_bert):
    settings = read_settings(tiny_bert).override(max_length=24)
    tokenizer = RetrieverTokenizer(settings.override(max_length=8), settings, query_tokens=16)
    aimed = tuple(Candidate(passage(n), "retrieved", target=n / 2) for n in (3, 1))
    long = "who wrote the river text forest"
    asked = [
        Example("0", long, (), aimed), Example("1", long, (), aimed[:1], (passage(5),) * 3),
    ]  # fmt: skip
    data = TrainingSet.build(asked, tokenizer)
    assert [len(ids) for ids in data.questions.take(np.arange(2))] == [8, 16]
    assert data.questions[0].tolist() == tokenizer.queries([Query(long)])[0]
    assert gather(data.scored, np.array([0, 1]))[1].tolist() == [0, 0, 1]
    assert data.targets.tolist() == [1.5, 0.5, 1.5]
    first, _, again = data.passages.take(gather(data.scored, np.array([0, 1]))[0])
    assert first.tolist() == again.tolist()
    plain = RetrieverTokenizer(settings.override(max_length=8), settings)
    assert plain.fingerprint != tokenizer.fingerprint


def test_bad_records_are_counted_with_their_line(tmp_path, caplog):
    good = json.dumps({"question": "a", "positive_ctxs": [{"text": "x"}]})
    bad = ['{"question": ""}', "{", '{"question": "a", "positive_ctxs": [{"title": "t"}]}', "[1]"]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join([good] * 50 + bad + [good] * 50))
    with pytest.raises(DataError, match=r"train.jsonl:51: malformed record \(no question"):
        list(read_examples(path))
    path.write_text("\n".join([*[good] * 5000, *bad]))
    with caplog.at_level(logging.WARNING):
        assert len(list(read_examples(path))) == 5000
    assert "4 bad" in caplog.text
    path.write_text('{"question": "a", "positive_ctxs": []}')
    with pytest.raises(DataError, match="no question with a positive"):
        list(read_examples(path))


@pytest.mark.parametrize(
    "text",
    [
        '{"version": "1.1", "data": [{"title": "T", "paragraphs": []}]}',
        '[{"_id": "1", "question": "who?", "answer": "x", "context": [], "supporting_facts": []}]',
    ],
)
def test_a_question_set_is_not_a_training_file(tmp_path, text):
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(DataError, match="`rag mine` makes training examples of it"):
        list(read_examples(path))


def test_lists_of_rows_are_stored(tmp_path):
    lists = row_lists([[5, 6], [], [7], list(range(9))])
    write_lists(lists, tmp_path / "t.arrow")
    assert read_lists(tmp_path / "t.arrow").to_pylist() == lists.to_pylist()
    (tmp_path / "t.arrow").write_bytes(b"ARROW1")
    for name in ("t.arrow", "none.arrow"):
        with pytest.raises(ArtifactError, match="no lists of passages"):
            read_lists(tmp_path / name)
    values, owners = gather(lists, np.array([3, 1, 0]))
    assert values.tolist() == [*range(9), 5, 6]
    assert owners.tolist() == [0] * 9 + [2, 2]


def test_the_tokens_are_those_the_encoder_reads(tiny_bert, tokenizer):
    from retrievers.encoders.bi_encoder import BiEncoder

    encoder = BiEncoder.load(tiny_bert, precision="fp32", layout="pair", max_length=24)
    first, second = encoder._layout.render(["Danube", ""], ["the river rises " * 9, "text"])
    expected = encoder._passage.tokenizer(first, second)
    assert tokenizer.passages(["Danube", ""], ["the river rises " * 9, "text"]) == expected
    assert len(tokenizer.queries([Query("who wrote " * 30)])[0]) == 12


def test_passages_are_kept_once(tokenizer):
    data = TrainingSet.build(examples(), tokenizer)
    assert len(data.passages) == 12 + 7
    assert data.canonical.tolist() == list(range(19))
    first = data.negatives[0].as_py()
    expected = tokenizer.passages([passage(100).title], [passage(100).text])[0]
    assert data.passages[first[0]].tolist() == expected


def test_rows_are_those_of_the_corpus(tokenizer):
    corpus = [passage(100), passage(1), passage(1), passage(0)]
    data = TrainingSet.build(examples(3), tokenizer, corpus=corpus)
    assert data.canonical[:4].tolist() == [0, 1, 1, 3]
    assert data.positives[0].as_py() == [3]


def test_a_kept_set_is_not_made_again(tmp_path, tokenizer):
    made = TrainingSet.build(examples(), tokenizer, folder=tmp_path, key="files")

    def never():
        raise AssertionError("read again")
        yield

    again = TrainingSet.build(never(), tokenizer, folder=tmp_path, key="files")
    assert again.ids == made.ids
    in_memory = TrainingSet.build(examples(), tokenizer)
    for other in (again, in_memory):
        for name in ("positives", "negatives", "scored"):
            assert getattr(other, name).equals(getattr(made, name))
        for name in ("questions", "passages"):
            tables = (getattr(one, name) for one in (other, made))
            ours, theirs = ([ids.tolist() for ids in t.take(np.arange(len(t)))] for t in tables)
            assert ours == theirs
    with pytest.raises(AssertionError, match="read again"):
        TrainingSet.build(never(), tokenizer, folder=tmp_path, key="other files")
    assert len(list(tmp_path.iterdir())) == 1  # the failed one left nothing
    with pytest.raises(DataError, match="under a key"):
        TrainingSet.build(examples(), tokenizer, folder=tmp_path)
    with pytest.raises(DataError, match="no training examples"):
        TrainingSet.build([], tokenizer)


def test_batches_depend_on_the_step_alone(tokenizer):
    data = TrainingSet.build(examples(), tokenizer)

    def texts(batches, step):
        batch = batches[step]
        return [t.tolist() for t in batch.questions + batch.passages]

    one = RetrieverBatches(data, Epochs(len(data), 4, epochs=3))
    other = RetrieverBatches(data, Epochs(len(data), 4, epochs=3))
    assert len(one) == 9
    straight = [texts(one, step) for step in range(9)]
    assert [texts(other, step) for step in reversed(range(9))] == straight[::-1]
    assert straight[0] != straight[3]
    assert texts(RetrieverBatches(data, Epochs(len(data), 4, epochs=3, seed=14)), 0) != straight[0]
    assert len(RetrieverBatches(data, Epochs(len(data), 4, epochs=3, max_batches=5))) == 5
    with pytest.raises(IndexError):
        one[9]


def test_one_of_several_positives_is_drawn_at_every_visit(tokenizer):
    """By the step alone; what was not drawn is no negative."""
    asked = [
        Example("q", "who", (), (
            Candidate(passage(0), "positive", target=2.0), Candidate(passage(1), "positive", target=3.0),
            Candidate(passage(2), "negative", target=0.0), Candidate(passage(3), "negative", target=1.0),
        )),
        Example("r", "where", (), (
            Candidate(passage(4), "positive", target=2.0), Candidate(passage(5), "negative", target=1.0),
        )),
    ]  # fmt: skip
    data = TrainingSet.build(asked, tokenizer)

    def right(step):
        batch = RetrieverBatches(data, Epochs(2, 2, epochs=200, seed=3))[step]
        row = batch.examples.tolist().index(0)
        texts = [text.tolist() for text in batch.passages]
        golds = [tokenizer.passages([passage(n).title], [passage(n).text])[0] for n in (0, 1)]
        left_out = [n for n, text in enumerate(texts) if text in golds and n != batch.positives[row]]
        assert all(batch.ignored[row, n] for n in left_out)
        return golds.index(texts[batch.positives[row]])

    taken = [right(step) for step in range(200)]
    assert 70 < sum(taken) < 130
    assert [right(step) for step in (150, 7, 31)] == [taken[step] for step in (150, 7, 31)]


def test_other_negatives_between_steps(tokenizer):
    data = TrainingSet.build(examples(), tokenizer)
    batches = RetrieverBatches(data, Epochs(len(data), 12), hard_negatives=1, mask_false_negatives=False)
    target = data.negatives[5].as_py()[0]
    batches.use_negatives(row_lists([[target]] * 11 + [[]]), "step 500")
    batch = batches[0]
    drawn = {int(batch.examples[q]): batch.passages[p] for q, p in batch.drawn.T}
    assert all(drawn[n].tolist() == data.passages[target].tolist() for n in range(11))
    own = [data.passages[row].tolist() for row in data.negatives[11].as_py()]
    assert drawn[11].tolist() in own
    with pytest.raises(DataError, match="name passage 999"):
        batches.use_negatives(row_lists([[999]] + [[]] * 11), "bad")


def test_batches_without_negatives_are_refused(tokenizer):
    alone = [Example.labelled(str(n), "who", ("river",), (passage(0),)) for n in range(4)]
    data = TrainingSet.build(alone, tokenizer)
    with pytest.raises(ConfigError, match="one question without hard negatives"):
        RetrieverBatches(data, Epochs(len(data), 1))
    with pytest.raises(ConfigError, match="no question has a negative"):
        RetrieverBatches(data, Epochs(len(data), 4))[0]  # the same passage for all
    with pytest.raises(ConfigError, match="4 questions cannot be shared by 8"):
        RetrieverBatches(data, Epochs(len(data), 4), mask_false_negatives=False)[0].shard(0, 8)


def test_a_run_of_a_few_steps_is_warned_of(caplog):
    def epochs_of(batch_size, epochs):
        return Epochs.of(
            SimpleNamespace(
                batch_size=batch_size, epochs=epochs, max_batches=None, seed=1,
            ),
            54,
        )  # fmt: skip

    epochs_of(64, 1)
    assert "batches hold 54 examples, not 64" in caplog.text
    assert "1 training steps teach next to nothing; raise epochs (now 1)" in caplog.text
    caplog.clear()
    assert len(epochs_of(16, 10)) == 30
    assert not caplog.text
