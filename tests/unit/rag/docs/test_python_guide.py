"""Every example of the page on Python runs, in the order of the page; training itself is left out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[4] / "rag" / "docs" / "python.md"


def test_the_examples_run(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.sentence_transformer(tmp_path / "built").rename(tmp_path / "my-model")
    documents = [
        {"id": "d1", "title": "Danube", "text": "The Danube rises in the Black Forest."},
        {"id": "d2", "title": "Rhine", "text": "The Rhine ends in the North Sea."},
        {"id": "d3", "title": "Sea", "text": "Where a river has its end the sea begins."},
    ]
    Path("corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    question = {"question": "Where does the Rhine end?", "answers": ["North Sea"], "gold_passage_ids": ["d2"]}
    Path("questions.jsonl").write_text(json.dumps(question))
    trained: list[Any] = []
    monkeypatch.setattr("rag.recipes.run", lambda config: trained.append(config) or Path("run"))
    monkeypatch.setattr("rag.rounds.rounds.run_rounds", lambda config, training: trained.append(config) or [])
    shared: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, block {number + 1}", "exec"), shared)
    printed = capsys.readouterr().out
    assert "Black Forest" in printed
    assert "Who painted it? no answer" in printed
    assert "AnswerSet('Where does the Danube rise?': 'the Black Forest'" in printed
    assert "1 questions, 1 with a positive" in printed
    assert len(Path("found.run").read_text().splitlines()) >= 1
    assert trained[0].optim.learning_rate == 2e-5
    assert trained[1].rounds == 2
    assert shared["before"].figures["top1"].value == 1.0
