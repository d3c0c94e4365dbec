"""A causal model is trained to answer from passages: all weights, or adapters that are merged at
the end.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, write_examples
from rag.rounds.examples import to_judge
from rag.rounds.judges import open_judge
from readers.generative.training.config import GeneratorTrainConfig
from readers.open import open_reader
from tests.support.messages import refusal
from tests.support.reading import read_one
from tests.tiny_causal import causal_folder, tiny_causal

WORDS = ["tower", "river", "city", "bridge", "castle", "harbour", "forest", "year"]


def examples() -> list[Example]:
    made = []
    for word, answer in zip(WORDS, reversed(WORDS), strict=True):
        passage = Passage(word, word, f"the {answer} is near {word}")
        candidate = Candidate(passage, "retrieved", has_answer=True)
        made.append(Example(word, f"what is near the {word}", (answer,), (candidate,)))
    return made


@pytest.mark.parametrize("lora", [0, 4])
def test_answers_become_likelier_and_the_folder_reads(tmp_path: Path, lora: int) -> None:
    write_examples(tmp_path / "train.json", examples())
    dev = [replace(item, question=f"{item.question} here") for item in examples()[:2]]
    write_examples(tmp_path / "dev.json", dev)
    model = causal_folder(tmp_path / "model")
    config: dict[str, Any] = {
        "train_files": [tmp_path / "train.json"],
        "validation_file": tmp_path / "dev.json",
        "out": tmp_path / "out",
        "model": str(model),
        "lora": lora,
        "answer_tokens": 8,
        "stages": [{"steps": 25, "batch_size": 8, "passage_tokens": 200}],
        "learning_rate": 5e-3,
        "precision": "fp32",
        "threads": 1,
    }
    reader = GeneratorTrainConfig(**config).train_model()
    questions = [to_judge(item) for item in examples()]
    before, after = (
        sum(
            float(values[0])
            for values in open_judge(place, "likelihood", precision="fp32").judge(questions)
        )
        for place in (model, reader)
    )
    assert after / len(questions) > before / len(questions) + 1.0  # nats per token
    opened = open_reader(reader, precision="fp32")
    assert read_one(opened, questions[0].question, questions[0].passages).answers
    names = AutoModelForCausalLM.from_pretrained(reader).state_dict()
    assert names.keys() == tiny_causal().state_dict().keys()  # no adapter is left
    assert "`AutoModelForCausalLM`" in (reader / "README.md").read_text()
    with refusal(ConfigError):
        GeneratorTrainConfig(
            **{**config, "out": tmp_path / "x", "checkpoint_layers": True}
        ).train_model()
