"""Training examples of what was retrieved: each passage scored by a reader, or told by the answers
it holds.

| signal | of | g_i, larger is better | reader passes per question |
|---|---|---|---|
| attention | generative, fid | mean cross-attention score of the first decoded token | 1 |
| likelihood | generative, llm | mean log p of the answer's tokens, passage alone | 1 per passage |
| span-likelihood | extractive | log(p of the answer's places in the passage + 0.0001) | 1, or none |
| relevance | cross-encoder | logit of "this passage answers it"; knows no answer | 1 |

Source:
    Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever" (attention); Izacard et
    al. 2022, "Atlas", section 2.2 (likelihood); Shi et al. 2024, "REPLUG", section 4.1 (of a
    language model). Khattab et al. 2021, "Relevance-guided Supervision for OpenQA with ColBERT",
    section 3 (answers).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rag.config import DEFAULT_SEED
from rag.core.arrays import Float64
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, check_target, directory_lock, sha256_file
from rag.data.examples import Example, read_examples, write_examples
from rag.data.text import REGEX_PROFILE, AnswerMatcher, most_matched
from rag.runtime.model_files import model_folder, weight_files, weights_sha256
from rag.runtime.seeds import generator
from readers.extractive.files import SHIPPED_READER
from readers.extractive.likelihood import span_log_likelihood
from readers.generative.attention import passage_attention
from readers.generative.marginal import passage_log_likelihood
from readers.generative.model import Memory, Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import encode_rows
from readers.open import open_reader, reader_kind
from retrievers.encoders.cross_encoder import CrossEncoder
from retrievers.examples.data import answer_matcher, matchable_answers
from retrievers.negatives.blocks import BlockFolder
from retrievers.negatives.mine import NegativeFilter
from retrievers.negatives.settings import GuidanceSettings

_BLOCK = 64  # questions that a killed run loses at most
_NEGATIVE_RANKS, _NEAR_RANKS, _NEAR_SHARE = (
    1000,
    100,
    0.5,
)  # half of the negatives from the first hundred
_SMALLEST = (
    1e-4  # probability of an answer that does not stand in a passage: a target must be finite
)
_KINDS = {  # signal → kinds of reader that give it
    "attention": ("generative",),
    "likelihood": ("generative", "llm"),
    "span-likelihood": ("extractive",),
    "relevance": ("cross-encoder",),
}
_SURE = 16.118  # log-odds of 1 − 1e-7, beyond which a cross-encoder's verdict counts no more


class Judge(NamedTuple):
    """A reader that gives a signal; `identity` has its name, kind and the hash of its weights."""

    model: Any
    signal: str
    identity: Mapping[str, str]

    def judge(self, examples: Sequence[Example]) -> list[Float64]:
        """For each question one number per passage, larger is better; −inf where a passage cannot
        be read.
        """
        if self.signal == "attention":
            return _of_memory(
                self.model, examples, lambda network, read, _: passage_attention(network, read)
            )
        if self.signal == "likelihood":
            return _of_memory(self.model, examples, passage_log_likelihood)
        if self.signal == "relevance":
            pairs = [(e.question, passage) for e in examples for passage in e.passages]
            logits = self.model.score([q for q, _ in pairs], [p for _, p in pairs]).astype(
                np.float64
            )
            ends = np.cumsum([len(e.candidates) for e in examples])[:-1]
            return np.split(np.clip(logits, -_SURE, _SURE), ends)
        questions, passages = [e.question for e in examples], [e.passages for e in examples]
        matchers = list(map(answer_matcher, examples))
        likelihoods = span_log_likelihood(self.model, questions, passages, matchers)
        return [np.logaddexp(values, np.log(_SMALLEST)) for values in likelihoods]


def _of_memory(
    reader: Any,
    examples: Sequence[Example],
    signal: Callable[[Seq2Seq, Memory, list[list[int]]], Tensor],
) -> list[Float64]:
    """A signal of a generative reader: questions one by one, their passages encoded once."""
    seq2seq, settings, values = reader.seq2seq, reader.settings, []
    for example in examples:
        rows = encode_rows(seq2seq.tokenizer, settings, [example.question], [example.passages])
        with torch.inference_mode():
            memory = seq2seq.encode(rows, settings.batch_tokens)
            [signals] = signal(seq2seq, memory, [seq2seq.answer_ids(example.target_answer)])
        values.append(np.asarray(signals.double().cpu()))
    return values


def open_judge(source: str | None, signal: str, *, precision: str = "auto") -> Judge:
    """Open a reader, as `open_reader` takes it (None: the shipped one), or a cross-encoder, for a
    signal.

    Raises:
        ArtifactError: there is no such reader.
        ConfigError: it cannot give this signal.
    """
    is_pair = signal == "relevance" and source is not None
    kind, name = "cross-encoder" if is_pair else reader_kind(source), source or "the shipped reader"
    if kind not in _KINDS[signal]:
        hint = f"{signal} comes from a {' or '.join(_KINDS[signal])} model"
        raise ConfigError(f"{name} ({kind}) cannot give {signal}", hint=hint)
    load: Any = {"cross-encoder": CrossEncoder.load, "llm": GenerativeReader.load}.get(
        kind, open_reader
    )
    model = load(source, precision=precision)
    if signal == "attention" and model.settings.mode != "fid":
        hint = "attention comes from a reader in mode fid"
        raise ConfigError(
            f"{name} (mode {model.settings.mode}) reads passages one by one", hint=hint
        )
    folder = SHIPPED_READER if source is None else model_folder(source)
    weights = weights_sha256(sorted(folder.glob("*.safetensors")) or weight_files(folder))
    named = str(getattr(model, "name", source))
    return Judge(model, signal, {"name": named, "kind": kind, "weights_sha256": weights})


def score_examples(examples: Path, out: Path, judge: Judge) -> Mapping[str, Any]:
    """Write `examples` with a target for each of a question's candidates.

    Existing targets are replaced; everything else stays. After every 64 questions, results are
    saved in `OUT.scoring/`, from which an interrupted run resumes, with the same output.

    Args:
        examples: training examples of any kind: `rag mine`'s, results of `rag retrieve`, FiD's.
        out: DPR's training JSON with targets; `OUT.report.json` beside it says where they come
            from.

    Returns:
        The report: signal, reader, checksums, and "counts" of questions, passages and what teaches
        nothing.

    Raises:
        ConfigError: `out` is `examples`.
        DataError: the examples cannot be read, no target could be given, or the reader gave NaN.
        MismatchedArtifactError: unfinished parts of another run are in the way.
    """
    if out.resolve() == examples.resolve():
        raise ConfigError(f"{out}: the examples would be overwritten", hint="give another --out")
    check_target(out)
    total = sum(1 for _ in read_examples(examples, needs="questions"))
    run = {"signal": judge.signal, "reader": judge.identity, "examples": sha256_file(examples)}
    work, score = out.with_name(out.name + ".scoring"), partial(_score_block, judge=judge)
    with directory_lock(work):
        blocks, questions = BlockFolder(work, run), read_examples(examples, needs="questions")
        blocks.fill(questions, score, total=total, size=_BLOCK, verb="score")
        counts = dict(blocks.counts())
        report = {"counts": counts, **run}
        if counts["passages"]:
            atomic_write_json(out.with_name(f"{out.name}.report.json"), report)
            write_examples(out, blocks.examples())
        blocks.remove()
    if not counts["passages"]:
        raise DataError(
            f"{examples}: no passage could be scored: {counts}",
            hint=f"{judge.signal} needs candidates, as of `rag retrieve`, and answers",
        )
    return report


def to_judge(example: Example) -> Example:
    """The example with a `target_answer`: its first answer, or what its expressions match most
    often.
    """
    answer = next(iter(example.answers), "")
    if example.answer_profile == REGEX_PROFILE:
        answer = most_matched(answer_matcher(example), (c.passage.text for c in example.candidates))
    return replace(example, target_answer=answer)


def _score_block(
    examples: Sequence[Example], judge: Judge, counts: Counter[str]
) -> Iterator[Example]:
    """The examples with targets; adds to the report's `counts`."""
    judged, needs_answers = list(map(to_judge, examples)), "likelihood" in judge.signal
    able = [bool(e.candidates) and (bool(e.target_answer) or not needs_answers) for e in judged]
    signals = iter(judge.judge([example for example, can in zip(judged, able, strict=True) if can]))
    for example, read, can in zip(examples, judged, able, strict=True):
        targets = next(signals) if can else np.full(len(example.candidates), -np.inf)
        if not (targets < np.inf).all():
            problem = f"{judge.identity['name']} gives {judge.signal} {targets} for {example.question!r:.80}"
            raise DataError(
                problem, hint="its weights are damaged, or it overflows: try precision fp32"
            )
        readable = targets[np.isfinite(targets)]
        counts["questions"] += 1
        counts["passages"] += len(readable)
        counts["unreadable"] += (len(targets) - len(readable)) * can
        counts["all passages alike"] += len(set(readable.tolist())) == 1
        counts["without answers"] += needs_answers and not read.target_answer
        if read.target_answer:
            matches = map(
                answer_matcher(example).matches, (passage.text for passage in example.passages)
            )
            counts["no passage holds an answer"] += not any(matches)
        candidates = (
            replace(candidate, target=round(target, 6) if np.isfinite(target) else None)
            for candidate, target in zip(example.candidates, targets.tolist(), strict=True)
        )
        yield replace(example, candidates=tuple(candidates))


def guided_examples(
    ranked: Iterable[Example], settings: GuidanceSettings, counts: Counter[str]
) -> Iterator[Example]:
    """One example per positive of a question: this positive first, then the others, and its
    negatives.

    Args:
        ranked: questions with answers and what was retrieved for them, best first.
        counts: of questions, of those that are left out, of positives and negatives; added to.

    Example:
        >>> from rag.core.types import Passage
        >>> from rag.data.examples import Candidate
        >>> retrieved = [Candidate(Passage(str(n), "", f"text {n}"), "retrieved") for n in range(4)]
        >>> example = Example("q", "which?", ("2",), tuple(retrieved))
        >>> (guided,) = guided_examples([example], GuidanceSettings(positives="1,4", negatives=2), Counter())
        >>> guided.positives[0].text, len(guided.negatives)
        ('text 2', 2)
    """
    for example in ranked:
        counts["questions"] += 1
        answers = matchable_answers(example.answers, example.answer_profile)
        if not answers:
            counts["without answers"] += 1
            continue
        matcher, listed = AnswerMatcher(answers, example.answer_profile), example.candidates
        holding = [place for place, hit in enumerate(listed) if matcher.matches(hit.passage.text)]
        chosen = set[int]()
        for most, first in settings.rules:  # at most so many of so many first passages
            chosen.update([place for place in holding if place < first][:most])
        if not chosen:
            counts["no passage holds an answer"] += 1
            continue
        right = [replace(listed[place], role="positive") for place in sorted(chosen)]
        copies = NegativeFilter(None, (), [hit.passage.text for hit in right])
        rest = sorted(set(range(min(len(listed), _NEGATIVE_RANKS))) - set(holding))
        rest = [place for place in rest if not copies.reason(-1, listed[place].passage)]
        counts["positives"] += len(right)
        for number, positive in enumerate(right):
            shuffled = (
                generator(DEFAULT_SEED, number, *example.id.encode()).permutation(rest).tolist()
            )
            near = [p for p in shuffled if p < _NEAR_RANKS][
                : round(_NEAR_SHARE * settings.negatives)
            ]
            others = [p for p in shuffled if p not in near][: settings.negatives - len(near)]
            wrong = [
                replace(listed[place], role="hard_negative") for place in sorted(near + others)
            ]
            counts["negatives"] += len(wrong)
            name = f"{example.id}#{number + 1}" if number else example.id
            also = (other for other in right if other is not positive)
            yield replace(example, id=name, candidates=(positive, *also, *wrong))
