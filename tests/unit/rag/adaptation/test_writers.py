"""A language model words the made questions: one that was trained to, or one that is asked in words."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag.adaptation.agreement import reworded
from rag.adaptation.questions import MadeQuestion
from rag.adaptation.writers import PromptedWriter, TrainedWriter, open_writer
from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage
from rag.data.examples import Example
from readers.extractive.files import SHIPPED_READER
from readers.generative.training.config import GeneratorTrainConfig
from readers.generative.training.data import for_question_writing
from readers.generative.training.recipe import train_generator
from readers.llm.prompt import Completion
from readers.open import open_reader
from tests.tiny_causal import causal_folder

PAIRS = [("tower", "year"), ("river", "forest"), ("city", "harbour"), ("bridge", "castle")]


def question_of(place: str) -> str:
    return f"what is near the {place}"


def passage_of(place: str, thing: str) -> Passage:
    return Passage(place, place, f"the {thing} is near {place}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GeneratorTrainConfig]:
    """A writer that has learnt four questions by heart."""
    folder = tmp_path_factory.mktemp("writer")
    records: list[dict[str, Any]] = [
        {
            "question": question_of(place), "answers": ["missing", thing],
            "ctxs": [
                {"title": "", "text": "nothing here"},
                {"title": place, "text": passage_of(place, thing).text},
            ],
        }
        for place, thing in PAIRS
    ]  # fmt: skip
    (folder / "train.json").write_text(json.dumps(records))
    (folder / "dev.json").write_text(json.dumps([{**records[0], "question": "what else"}]))
    config: dict[str, Any] = {
        "train_files": [folder / "train.json"], "validation_file": folder / "dev.json", "out": folder / "out",
        "model": str(causal_folder(folder / "model")), "writes": "questions", "mode": "single",
        "answer_tokens": 8,
        "stages": [{"steps": 160, "batch_size": 4, "passage_tokens": 200}], "learning_rate": 5e-3,
        "precision": "fp32", "threads": 1,
    }  # fmt: skip
    checked = GeneratorTrainConfig(**config)
    return train_generator(checked), checked


def test_a_trained_writer_asks_for_the_answer(trained: tuple[Path, GeneratorTrainConfig]) -> None:
    writer = open_writer(str(trained[0]), precision="fp32")
    assert isinstance(writer, TrainedWriter)
    assert "rag adapt --index DIR --writer FOLDER" in (trained[0] / "README.md").read_text()
    passages = [
        replace(one, text=one.text.replace(thing, f"[[{thing}]]"))
        for one, (_, thing) in zip(itertools.starmap(passage_of, PAIRS), PAIRS, strict=True)
    ]
    assert writer.write(passages, [thing for _, thing in PAIRS]) == [question_of(place) for place, _ in PAIRS]


def test_a_writer_is_no_reader_and_a_reader_no_writer(
    trained: tuple[Path, GeneratorTrainConfig], tmp_path: Path
) -> None:
    folder, config = trained
    with pytest.raises(ConfigError, match="writes questions, expected answers"):
        open_reader(folder)
    settings = json.loads((folder / "reader.json").read_text())
    settings["settings"]["writes"] = "answers"
    other = tmp_path / "reader"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "reader.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="writes answers") as caught:
        open_writer(str(other))
    assert "question-writer" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="answers by spans"):
        open_writer(str(SHIPPED_READER))
    with pytest.raises(ValueError, match="set mode to single"):
        GeneratorTrainConfig(**{**config.model_dump(), "mode": "fid"})


def test_only_extractive_questions_are_learnt_from(
    trained: tuple[Path, GeneratorTrainConfig], tmp_path: Path
) -> None:
    loose = {"question": "why", "answers": ["because"], "ctxs": [{"title": "", "text": "nothing here"}]}
    (tmp_path / "train.json").write_text(json.dumps([loose]))
    config = trained[1].model_copy(
        update={"train_files": (tmp_path / "train.json",), "out": tmp_path / "out"}
    )
    with pytest.raises(DataError, match="no question whose answer stands in one of its passages"):
        train_generator(config)


def test_turned_examples_ask_with_the_answer_as_it_is_spelt() -> None:
    text = "word " * 200 + "The Harbour is near. " + "word " * 200
    example = Example.labelled("1", "what is near?", ["the harbour"], [Passage("p", "Town", text)])
    [found] = for_question_writing([example])
    assert (found.question, found.answers) == ("The Harbour", ("what is near?",))
    assert len(found.passages[0].text.split()) == 110
    assert "[[The Harbour]] is near." in found.passages[0].text


class Talker:
    """Repeats what it was asked for, or gives a reply that is no question."""

    name, is_remote = "talker", True

    def __init__(self, parallel: int) -> None:
        self.parallel = parallel

    def complete(
        self, messages: Sequence[dict[str, str]], max_tokens: int, *, timeout_s: float | None = None
    ) -> Completion:
        answer = messages[-1]["content"].rsplit("Answer: ", 1)[1]
        if answer == "castle":
            return Completion("Is it the castle?")
        return Completion(f'<think>hm</think>\nQuestion: "Where does the {answer[::-1]} lie?"\nThat is it.')

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        return True


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_prompted_writer_replies_with_one_question(parallel: int) -> None:
    made = [(passage_of(*pair), MadeQuestion("sentence", "rule", pair[1], 4)) for pair in PAIRS]
    found = reworded(made, PromptedWriter(Talker(parallel)))
    assert [one.text for _, one in found] == [f"Where does the {thing[::-1]} lie?" for _, thing in PAIRS[:3]]
    assert [one.answer for _, one in found] == [
        thing for _, thing in PAIRS[:3]
    ]  # the last gave its answer away


def test_an_untrained_model_is_asked_in_words(tmp_path: Path) -> None:
    writer = open_writer(str(causal_folder(tmp_path / "model")), precision="fp32")
    assert isinstance(writer, PromptedWriter)
    texts = writer.write([passage_of(*PAIRS[0])] * 9, [PAIRS[0][1]] * 9)
    assert texts == [texts[0]] * 9
