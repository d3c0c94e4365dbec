"""The confidence of a language model's answer counts the answer's own tokens, and can be fitted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag.core.errors import DataError, EndpointError
from rag.core.files import atomic_write_json, read_json
from rag.core.types import Hit, Passage, Question, SearchResult
from rag.eval.confidence_tuning import tune_language_model
from rag.eval.settings import EvaluationSettings
from readers.llm.confidence import Signs, answer_log_p, confidence
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader
from readers.llm.specs import LanguageModel
from readers.llm.tuned import save_tuned
from readers.open import open_reader
from readers.protocols import ReadRequest
from tests.chat_server import Server, chat
from tests.pipeline_parts import LastWordsReader
from tests.support.completing import MadeModel
from tests.support.messages import refusal

FITTED = (-1.0, 0.5, 0.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("tokens", "statements", "log_p"),
    [
        ([('{"answer": ', -9), ('"', -9), ("Bl", -1), ("ack", -2), ('"}', -9)], ["Black"], -1.5),
        # The name stands in the reasoning, too; the conclusion counts.
        ([("Ulm? ", -5), ("Answer:", -5), (" Ulm", -1), (".", -5)], ["Ulm"], -1),
        # A token that is glued to a mark of the grammar counts where there is no other.
        ([('{"answer":', -9), ('"1990"', -2), ("}", -9)], ["1990"], -2),
        ([('{"answer":"', -9), ('a\\"', -2), ("b", -4), ('"}', -9)], ['a"b'], -3),
        (
            [("It rises", -1), (" [1].", -9), (" It ends", -2), (" [2].", -9)],
            ["It rises", "It ends."],
            -1.5,
        ),
        ([('{"answer": ', -9), ("null", -1), ("}", -9)], [], -1),
        ([("I", -1), (" don't know", -3)], [], -2),
        ([("Ulm", -1)], ["Linz"], None),
        ([], ["Ulm"], None),
    ],
)
def test_only_the_tokens_of_the_answer_count(
    tokens: list[tuple[str, float]], statements: list[str], log_p: float | None
) -> None:
    text = "".join(piece for piece, _ in tokens)
    completion = Completion(text, tuple((piece.encode(), float(p)) for piece, p in tokens))
    assert answer_log_p(completion, [(each, ()) for each in statements]) == log_p


def test_half_a_character_is_a_token() -> None:
    pieces = ["é".encode()[:1], "é".encode()[1:], b"t", b"!"]
    completion = Completion("ét!", tuple((piece, -1.0) for piece in pieces))
    assert answer_log_p(completion, [("ét", ())]) == -1.0


class Colours:
    """Finds one passage that holds both colours."""

    def __init__(self) -> None:
        self.reader = None
        self.identity = dict[str, object]()

    def search(
        self, queries: Sequence[str], top_k: int, *, timer: Any = None
    ) -> list[SearchResult]:
        ranked = [(Hit(0, "p", 1.0), Passage("p", "", "yellow and blue"))]
        return [SearchResult(query, ranked) for query in queries]


def test_the_fit_finds_the_rule_that_made_the_answers() -> None:
    draw = np.random.default_rng(5)
    log_p = -draw.exponential(1.0, 400)
    right = draw.random(400) < 1 / (1 + np.exp(-(2.0 + 2.0 * log_p)))
    texts = np.where(right, "yellow", "blue").tolist()
    questions = [Question(str(n), str(n), ("yellow",)) for n in range(400)]

    def reply(content: str) -> Completion:
        number = int(content.rsplit("Question: ", 1)[1])
        return Completion(texts[number], ((texts[number].encode(), float(log_p[number])),))

    reader = LanguageModelReader(MadeModel(reply), LanguageModel(model="made"))
    tuning = tune_language_model(Colours(), reader, questions, EvaluationSettings())
    assert (tuning.n, tuning.unanswerable) == (400, 0)
    assert tuning.fitted[1] == pytest.approx(2.0, abs=0.5)
    assert tuning.ece_after < min(0.08, tuning.ece_before)
    for few in (
        questions[:20],
        [q for q, is_right in zip(questions, right, strict=True) if is_right],
    ):
        with refusal(DataError):
            tune_language_model(Colours(), reader, few, EvaluationSettings())


def test_a_fitted_confidence_is_kept_with_the_name_of_the_model(
    tmp_path: Path, server: Server
) -> None:
    server.replies = [chat("blue [1]")]
    source = f"{server.source},retries=0"
    save_tuned(source, tmp_path / "a", FITTED, 40)
    save_tuned(str(tmp_path / "a"), tmp_path / "b", FITTED, 40)
    stored = read_json(tmp_path / "b" / "reader.json")
    assert (stored["source"], stored["calibration"]["questions"]) == (source, 40)
    request = ReadRequest.of("Which colour is the sky?", [Passage("p", "", "The sky is blue.")])
    [answers] = open_reader(tmp_path / "b").read([request])
    fitted, plain = (open_reader(each).version for each in (tmp_path / "b", source))
    # A promise about one of them does not hold for the other.
    assert fitted != plain
    # The extractive reader says the same.
    expected = confidence(Signs(None, 1.0, 1.0), FITTED)
    assert answers.answers[0].confidence == pytest.approx(expected)
    assert expected > confidence(Signs(None, 0.0, 0.0), FITTED)
    server.replies = [(500, b"{}")]
    reader = open_reader(source)
    assert isinstance(reader, LanguageModelReader)
    reader = reader.for_language("de").tuned(None, LastWordsReader())
    assert reader.language == "de"
    with refusal(EndpointError):
        questions = [Question("1", "Which?", ("blue",))]
        tune_language_model(Colours(), reader, questions, EvaluationSettings())


def test_a_folder_is_named_so_that_it_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a#b", "c"):
        (tmp_path / folder).mkdir()
        atomic_write_json(
            f"{folder}/config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        )
    for number, source in enumerate(("a#b", "c", "c#passages=5,style=cited")):
        save_tuned(source, tmp_path / f"{number}", FITTED, 40)
        stored = read_json(tmp_path / f"{number}" / "reader.json")
        assert stored["source"] == f"{tmp_path}/{source}"


def test_an_answer_that_is_not_supported_is_doubted() -> None:
    supported, doubted = (confidence(Signs(-0.1, support), None) for support in (1.0, 0.0))
    assert (supported, doubted) == pytest.approx((0.905, 0.181), abs=1e-3)
    assert confidence(Signs(None, 1.0), None) == 0.5


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        # It cites nothing, but a passage that the model was shown says so.
        ("Release the pressure at valve V3.", 0.5),
        ("Release the pressure at valve V3. [1]", 0.5),
        ("Release the pressure at valve V9.", 0.1),
        ("Release the pressure at valve V9. [1]", 0.1),
        # Half of the sentences hold.
        ("Release the pressure at valve V3. [1] Then call Ulm. [1]", 0.3),
    ],
)
def test_a_reply_without_citations_is_as_sure_as_the_passages_make_it(
    reply: str, expected: float
) -> None:
    model = MadeModel(lambda content: Completion(reply))
    reader = LanguageModelReader(
        model, LanguageModel(model="made", style="cited", verifier="words")
    )
    passage = Passage("p", "Pump", "Before any work you release the pressure at valve V3.")
    [answers] = reader.read([ReadRequest.of("What comes first?", [passage])])
    assert answers.answers[0].confidence == pytest.approx(expected)
