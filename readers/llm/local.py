"""A causal language model in a local folder, run by transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer

from rag.config import load_config
from rag.core.errors import ReaderError
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.runtime.backbone import loading
from rag.runtime.chat import chat_frame
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.generative.causal import PLAIN_END, Causal, causal_limit
from readers.generative.constrained import span_rule
from readers.llm.prompt import Completion, Reply, to_result
from readers.llm.reader import LanguageModelReader, LanguageModelSettings, as_results, best_ranked, reindexed
from readers.protocols import PassageLists, ReadResult, ScoreLists, check_request
from readers.spans import find_span

log = get_logger(__name__)


def open_local(
    source: str | Path, *, precision: str = "auto", device: str = "auto", **settings: Any
) -> LocalReader:
    """The reader of a folder (or Hugging Face name) that `AutoModelForCausalLM` opens.

    Args:
        source: folder or name.
        precision: "auto", "fp32" or "bf16".
        device: "auto", "cpu" or "cuda".

    Raises:
        ArtifactError: no such model is there.
        ConfigError: a setting is wrong, or bf16 was requested and the processor has none.
    """
    checked = load_config(LanguageModelSettings, overrides=settings)
    where = resolve_device(device)
    with loading(f"{source}: no language model there", hint="give a folder of `save_pretrained`"):
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=resolve_precision(precision, where))
    return LocalReader(LocalModel(model.to(where).eval(), tokenizer, str(source)), checked)


class LocalModel:
    """Completes chats greedily or by beams, whatever sampling and penalties the folder states.

    Attributes:
        name: folder or hub name.
        parallel: 1: the model uses all cores by itself.
        network: the model; it reads a prompt once for all answers that are generated and scored after it.
    """

    parallel = 1
    is_remote = False

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.name = name
        self._has_chat = bool(getattr(tokenizer, "chat_template", None))
        if not self._has_chat:
            log.info("%s has no chat template: it continues plain text that ends with 'Answer:'", name)
        self._end = chat_frame(tokenizer, PLAIN_END)[1]
        self.network = Causal(model, tokenizer, self._end)
        self.window = causal_limit(model)

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """Whether messages and reply fit into the model's positions."""
        return len(self.prompt(messages)) + max_tokens <= self.window

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of the messages, up to where the reply begins."""
        return [*self._row(messages), *self.network.tail, self.network.start]

    def complete(
        self, messages: Sequence[dict[str, str]], max_tokens: int, *, timeout_s: float | None = None
    ) -> Completion:
        """The greedy continuation, with the log-probability of each token; there is no time limit.

        Raises:
            ReaderError: question and a single passage are longer than the model's window.
        """
        [[completion]] = self.complete_all([messages], max_tokens)
        return completion

    @torch.inference_mode()
    def complete_all(
        self,
        chats: Sequence[Sequence[dict[str, str]]],
        max_tokens: int,
        *,
        beams: int = 1,
        quoted: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Completion]]:
        """Continuations of several chats, read and generated together; of each the best first.

        Args:
            chats: messages of each.
            max_tokens: longest reply.
            beams: hypotheses per chat; 1 is greedy.
            quoted: for each chat, texts of which a reply must be a span; None: any reply.

        Raises:
            ReaderError: one is longer than the model's window.
        """
        for messages in chats:
            if not self.fits(messages, max_tokens):
                raise ReaderError(
                    f"{self.name}: a question with one passage and {max_tokens} tokens of reply exceeds the "
                    f"model's window of {self.window} tokens",
                    hint="index shorter passages, or use a model with a longer window",
                )
        network = self.network
        memory = network.encode([[self._row(messages)] for messages in chats])
        rules = None if quoted is None else [span_rule(network, texts, max_tokens) for texts in quoted]
        made = network.generate(memory, answer_tokens=max_tokens, beams=beams, allowed=rules)
        pairs = [(row, ids) for row, answers in enumerate(made) for ids in answers]
        if not pairs:
            return [[] for _ in chats]
        labels = network.targets([ids for _, ids in pairs])
        scores = iter(network.token_log_probs(memory.rows([row for row, _ in pairs]), labels).tolist())
        longest = max_tokens if quoted is None else max_tokens + 1
        return [[self._completion(ids, next(scores), longest) for ids in answers] for answers in made]

    @torch.inference_mode()
    def log_likelihood(
        self, chats: Sequence[Sequence[dict[str, str]]], answers: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """log p(answer | chat), in nats, of several answers of each chat, whose prompt is read once."""
        network, pairs = self.network, [(row, text) for row, texts in enumerate(answers) for text in texts]
        memory = network.encode([[self._row(messages)] for messages in chats])
        labels = network.targets([network.answer_ids(text) for _, text in pairs])
        sums = network.token_log_probs(memory.rows([row for row, _ in pairs]), labels).sum(1)
        values = iter(sums.tolist())
        return [[next(values) for _ in texts] for texts in answers]

    def _completion(self, ids: Sequence[int], log_probs: Sequence[float], longest: int) -> Completion:
        ended = [self.network.end] if len(ids) < longest else []  # a reply that was cut has no end token
        pieces = self.network.tokenizer.convert_ids_to_tokens([*ids, *ended])
        return Completion(self.network.words(ids), tuple(zip(pieces, log_probs, strict=False)))

    def _row(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of the messages without the end of the prompt."""
        tokenizer = self.network.tokenizer
        if not self._has_chat:
            return list(tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"])
        try:
            text = self._chat(messages)
        except TemplateError:  # the template has no system role
            whole = "\n\n".join(message["content"] for message in messages)
            text = self._chat([{"role": "user", "content": whole}])
        text = text.removesuffix(self._end)
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _chat(self, messages: Sequence[dict[str, str]]) -> str:
        return str(
            self.network.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """A question, its place, the numbers of the passages shown with it, these, the messages that ask it."""

    number: int
    question: str
    shown: list[int]
    passages: list[Passage]
    messages: list[dict[str, str]]


class LocalReader(LanguageModelReader):
    """A language model in this process: questions are read in batches, answers may have to be quotations."""

    completer: LocalModel

    def read(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, n_best: int = 5
    ) -> list[ReadResult]:
        """Answer each question from its own passages; see `LanguageModelReader.read`.

        With `quote` there are at most `beams` answers, each a span of a passage.
        """
        check_request(questions, passages, scores, n_best)
        found: list[ReadResult | ReaderError] = [ReadResult((), 1.0) for _ in questions]
        for batch in self._batches(questions, passages, scores):
            for job, result in zip(batch, self._read_batch(batch), strict=True):
                found[job.number] = result
        return as_results(found, n_best)

    def log_likelihood(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists, answers: Sequence[str]
    ) -> list[float]:
        """log p(answer | question, passages), in nats; see `readers.protocols.TellsLikelihood`."""
        check_request(questions, passages, scores, 1)
        found = [float("nan")] * len(questions)

        def fits(job: _Job) -> bool:
            answer = self.completer.network.answer_ids(answers[job.number])
            return self.completer.fits(job.messages, len(answer) + 1)

        for jobs in self._batches(questions, passages, scores):
            batch = list(filter(fits, jobs))  # the others stay NaN
            if not batch:
                continue
            values = self.completer.log_likelihood(
                [j.messages for j in batch], [[answers[j.number]] for j in batch]
            )
            for job, [value] in zip(batch, values, strict=True):
                found[job.number] = value
        return found

    def _batches(
        self, questions: Sequence[str], passages: PassageLists, scores: ScoreLists
    ) -> Iterator[list[_Job]]:
        """The questions that have passages, in batches."""
        batch: list[_Job] = []
        for number, (question, own, given) in enumerate(zip(questions, passages, scores, strict=True)):
            shown = best_ranked(given, self.settings)
            if not shown:
                continue
            shown, messages = self.shown(question, own, shown)
            batch.append(_Job(number, question, shown, [own[place] for place in shown], messages))
            if len(batch) == self.settings.batch:
                yield batch
                batch = []
        if batch:
            yield batch

    def _read_batch(self, batch: Sequence[_Job]) -> list[ReadResult | ReaderError]:
        settings, quoted = self.settings, None
        if settings.quote:
            quoted = [[passage.text for passage in job.passages] for job in batch]
        try:
            replies = self.completer.complete_all(
                [job.messages for job in batch], settings.answer_tokens, beams=settings.beams, quoted=quoted
            )
        except ReaderError as error:
            if len(batch) == 1:
                return [error]
            return [result for job in batch for result in self._read_batch([job])]
        return [
            self._quoted(job, made) if settings.quote else self._stated(job, made)
            for job, made in zip(batch, replies, strict=True)
        ]

    def _stated(self, job: _Job, made: Sequence[Completion]) -> ReadResult | ReaderError:
        try:
            completion = made[0] if made else Completion("")
            return self.parse_result(job.question, completion, job.passages, job.shown)
        except ReaderError as error:
            return error

    def _quoted(self, job: _Job, made: Sequence[Completion]) -> ReadResult:
        """Each quotation cites the passages in which it stands."""
        answers = []
        for one in made:
            places = [n for n, p in enumerate(job.passages, start=1) if find_span(one.text, p.text)]
            result = to_result(Reply(one.text, tuple(places)), one, job.passages)
            answers += [reindexed(answer, job.shown) for answer in result.answers]
        distinct = {(answer.text, answer.passage_index): answer for answer in reversed(answers)}
        kept = sorted(distinct.values(), key=lambda answer: -answer.score)
        return ReadResult(tuple(kept), 0.0 if kept else 1.0)
