"""Question sets as token arrays: which passages of a question answer it, and where."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rag.core.arrays import Int32
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Question
from rag.data.examples import Candidate, Example, Role, read_examples
from rag.data.questions import read_questions
from rag.data.text import REGEX_PROFILE, AnswerMatcher, exact_match, normalize_answer
from readers.extractive.layout import PairTemplate, TokenizedTexts, pair_template, tokenize_texts
from readers.extractive.training.config import TrainingSet

SPAN, YES, NO, UNLABELLED = 0, 1, 2, 3
_MAX_SPANS = 10  # in one passage, as in DPR
_MAX_ANSWER_TOKENS = 60


def answer_type(example: Example) -> int:
    """SPAN, YES or NO."""
    words = {normalize_answer(answer) for answer in example.answers}
    return YES if words == {"yes"} else NO if words == {"no"} else SPAN


def is_right(text: str, example: Example) -> bool:
    """Exact match by SQuAD's rules, or by the expressions where the answers are such."""
    return exact_match(text, example.answers, example.answer_profile)


def read_set(part: TrainingSet, *, serving: bool = False) -> list[Example]:
    """The questions of a set that have answers, with all their passages: the gold ones, the set's
    other paragraphs with score 0, then the retrieved ones.

    Args:
        part: the set.
        serving: take only the retrieved passages, if there are any.

    Raises:
        DataError: a file is wrong, no question is left, or `retrieved` has fewer than half of them.
    """
    every = (_shortened(part, question) for question in read_questions(part.questions))
    questions = [question for question in every if _is_used(question, part)]
    if not questions:
        where = f" where {dict(part.where)}" if part.where else ""
        raise DataError(f"{part.questions}: no question with answers{where}")
    # results of `rag retrieve`, and files of FiD, hold their passages themselves
    path = part.retrieved or (part.questions if "ctxs" in questions[0].meta else None)
    retrieved: dict[str, tuple[Candidate, ...]] = {}
    if path is not None:
        texts = {question.text for question in questions}
        listed = (
            (e.question, e.of_role("retrieved")) for e in read_examples(path, needs="questions")
        )
        retrieved = {
            text: candidates for text, candidates in listed if text in texts and candidates
        }
        if len(retrieved) < len(texts) / 2 and not serving:
            raise DataError(
                f"{path}: knows only {len(retrieved)} of {len(texts)} questions of {part.questions}",
                hint="run `rag retrieve` for these questions",
            )
        if serving:
            questions = [question for question in questions if question.text in retrieved]
    examples = []
    for q in questions:
        shown = tuple(_candidates(q, retrieved.get(q.text, ()), serving, part.window_words))
        example = Example(
            q.id,
            q.text,
            q.answers,
            shown,
            answer_profile=q.answer_profile,
            answer_starts=q.answer_starts,
        )
        examples.append(example)
    return examples


def _shortened(part: TrainingSet, question: Question) -> Question:
    """The question without the answers that are too long; SQuAD's places belong to its first answer
    alone.
    """
    if not part.labelled:
        return replace(question, answers=(), answer_starts=())
    if not part.max_answer_words or question.answer_profile == REGEX_PROFILE:
        return question
    short = tuple(a for a in question.answers if len(a.split()) <= part.max_answer_words)
    starts = question.answer_starts if short[:1] == question.answers[:1] else ()
    return replace(question, answers=short, answer_starts=starts)


def _is_used(question: Question, part: TrainingSet) -> bool:
    return (bool(question.answers) or part.unanswerable or not part.labelled) and all(
        str(question.meta.get(field)) == value for field, value in part.where.items()
    )


def _candidates(
    question: Question, retrieved: Sequence[Candidate], serving: bool, window_words: int
) -> Iterator[Candidate]:
    """Gold passages, the set's distractors and what was retrieved, each text once; the last if
    `serving`.
    """
    matcher = AnswerMatcher(question.answers, question.answer_profile)
    if window_words and not (serving and retrieved):
        for item in question.gold:
            yield from _windows(question, item.passage, matcher, window_words)
        return
    seen: set[str] = set()
    if not (serving and retrieved):
        for item in (*question.gold, *question.context):
            if item.passage.text.strip() and item.passage.text not in seen:
                seen.add(item.passage.text)
                role: Role = "positive" if item in question.gold else "hard_negative"
                holds = matcher.matches(item.passage.text)
                yield Candidate(item.passage, role, score=0.0, has_answer=holds)
    for candidate in retrieved:
        text, stated = candidate.passage.text, candidate.has_answer
        if serving or text not in seen:
            seen.add(text)
            yield replace(candidate, has_answer=matcher.matches(text) if stated is None else stated)


def _windows(
    question: Question, passage: Passage, matcher: AnswerMatcher, words: int
) -> Iterator[Candidate]:
    """Windows of a passage, those that share most words with the question first.

    A window is longer where it would cut an answer. Where the set says which place is the answer,
    and it is, windows with the same words elsewhere are neither right nor wrong, and left out.
    """
    text = passage.text
    spans = _annotated(question, text) or matcher.places(text)
    question_words = set(normalize_answer(question.text).split())
    cut: list[Candidate] = []
    for begin, end in window_bounds(text, words, spans):
        window = Passage("", passage.title, text[begin:end])
        answers = any(begin <= start and last <= end for start, last in spans)
        if answers or not matcher.matches(window.text):
            shared = len(question_words & set(normalize_answer(window.text).split()))
            role: Role = "positive" if answers else "hard_negative"
            cut.append(Candidate(window, role, score=float(shared), has_answer=answers))
    yield from sorted(cut, key=lambda candidate: -(candidate.score or 0.0))


def window_bounds(
    text: str, words: int, spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """First character and one past the last of consecutive windows, none of which ends inside a
    span.
    """
    places = [match.span() for match in re.finditer(r"\S+", text)]
    first = 0
    while first < len(places):
        stop = min(first + words, len(places))
        begin, end = places[first][0], places[stop - 1][1]
        for start, last in spans:
            while start < end < last and stop < len(places):
                end, stop = places[stop][1], stop + 1
        yield begin, end
        first = stop


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """A question and its passages, positives first.

    Attributes:
        tokens: of the question, (L,) int32.
        set: number of its set.
        type: SPAN, YES, NO or UNLABELLED.
        passages: numbers of its passages.
        spans: of each positive passage first and last token of the answers in its text.
    """

    tokens: Int32
    set: int
    type: int
    passages: tuple[int, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class ReaderExamples:
    """Training questions over N different passages.

    Attributes:
        titles, texts: N tokenised titles and texts.
        template: special tokens of the rows.
    """

    questions: Sequence[TrainingQuestion]
    titles: TokenizedTexts
    texts: TokenizedTexts
    template: PairTemplate

    def __len__(self) -> int:
        return len(self.questions)


def load_examples(
    sets: Sequence[tuple[TrainingSet, Sequence[Example]]],
    tokenizer: Any,
    *,
    answer_types: bool = False,
    negatives_top_k: int = 6,
) -> ReaderExamples:
    """Tokenise everything once. Questions without a passage that contains an answer are left out
    and counted.

    Args:
        sets: question sets with their examples.
        answer_types: keep questions whose answer is "yes" or "no".
        negatives_top_k: maximum number of passages without the answer to keep, best first.

    Raises:
        DataError: no question is left.
        ArtifactError: the tokenizer does not frame pairs as [CLS] question [SEP] text [SEP].
    """
    numbered = [
        (number, example) for number, (_, examples) in enumerate(sets) for example in examples
    ]
    roles = [_roles(example, answer_types, negatives_top_k) for _, example in numbered]
    numbers: dict[tuple[str, str], int] = {}  # of the different passages
    for positives, negatives in roles:
        for candidate in (*(candidate for candidate, _ in positives), *negatives):
            numbers.setdefault(_key(candidate), len(numbers))
    texts = tokenize_texts(tokenizer, [text for _, text in numbers])
    titles = tokenize_texts(tokenizer, [title for title, _ in numbers])
    tokenized = tokenize_texts(tokenizer, [example.question for _, example in numbered])
    questions: list[TrainingQuestion] = []
    for n, ((place, example), (positives, negatives)) in enumerate(
        zip(numbered, roles, strict=True)
    ):
        kind = answer_type(example) if sets[place][0].labelled else UNLABELLED
        passages, spans = list[int](), list[tuple[tuple[int, int], ...]]()
        for candidate, places in positives:
            number = numbers[_key(candidate)]
            located = tuple(texts.located(number, places, _MAX_ANSWER_TOKENS))
            if located or kind != SPAN:
                passages.append(number)
                spans.append(located)
        if spans or (negatives and not example.answers):
            passages += [numbers[_key(candidate)] for candidate in negatives]
            tokens = tokenized.tokens(n)
            questions.append(TrainingQuestion(tokens, place, kind, tuple(passages), tuple(spans)))
    if len(questions) < len(numbered):
        get_logger(__name__).warning(
            "%d of %d questions left out: no passage of theirs holds an answer of at most %d tokens",
            *(len(numbered) - len(questions), len(numbered), _MAX_ANSWER_TOKENS),
        )
    if not questions:
        raise DataError(
            "no question has a passage that answers it",
            hint="give gold passages, or `retrieved` results that hold the answers",
        )
    return ReaderExamples(questions, titles, texts, pair_template(tokenizer))


def _key(candidate: Candidate) -> tuple[str, str]:
    return candidate.passage.title, candidate.passage.text


def _roles(
    example: Example, answer_types: bool, most: int
) -> tuple[list[tuple[Candidate, list[tuple[int, int]]]], list[Candidate]]:
    """Positive passages with the places of the answers in them, and the best negatives."""
    if not example.answers:
        return [], list(example.candidates[:most])
    gold = example.of_role("positive")
    if answer_type(example) != SPAN:
        others = [candidate for candidate in example.candidates if candidate.role != "positive"]
        return (
            ([(candidate, []) for candidate in gold], others[:most]) if answer_types else ([], [])
        )
    has_gold = any(candidate.has_answer for candidate in gold)
    matcher = AnswerMatcher(example.answers, example.answer_profile)
    positives = []
    for candidate in example.candidates:
        if candidate.has_answer and (candidate.role == "positive" or not has_gold):
            text, is_gold = candidate.passage.text, candidate.role == "positive"
            annotated = _annotated(example, text) if is_gold else []
            places = [
                *annotated,
                *(place for place in matcher.places(text) if place not in annotated),
            ]
            if places:
                positives.append((candidate, places[:_MAX_SPANS]))
    return positives, [candidate for candidate in example.candidates if not candidate.has_answer][
        :most
    ]


def _annotated(question: Question | Example, text: str) -> list[tuple[int, int]]:
    """The place that SQuAD states for the first answer, if it stands there in this text."""
    pairs = zip(question.answers[:1], question.answer_starts[:1], strict=False)
    return [(start, start + len(a)) for a, start in pairs if a and text.startswith(a, start)]
