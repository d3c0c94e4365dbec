"""Question sets as token arrays: which passages of a question answer it, and where."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from rag.core.arrays import Int32
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Question
from rag.data.examples import Candidate, Example, Role, read_examples
from rag.data.questions import read_questions
from rag.data.text import REGEX_PROFILE, AnswerMatcher, exact_match, normalize_answer
from readers.extractive.layout import PairTemplate, TokenizedTexts, pair_template, tokenize_texts
from readers.extractive.training.config import TrainingSet

# What answers a question, or that its answers are not learnt.
SPAN = 0
YES = 1
NO = 2
UNLABELLED = 3
_MAX_SPANS = 10  # in one passage, as in DPR
_MAX_ANSWER_TOKENS = 60

TokenSpans = tuple[tuple[int, int], ...]
"""First and last token of each answer in a text."""
Judged = tuple[Candidate, list[tuple[int, int]] | None]
"""A passage, and the places of the answers in its text; None where it is a negative."""


def answer_type(example: Example) -> int:
    """SPAN, YES or NO."""
    words = set(map(normalize_answer, example.answers))
    if words == {"yes"}:
        return YES
    return NO if words == {"no"} else SPAN


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
    questions = []
    for question in read_questions(part.questions):
        question = _shortened(part, question)
        if _is_used(question, part):
            questions.append(question)
    if not questions:
        where = f" where {dict(part.where)}" if part.where else ""
        raise DataError(f"{part.questions}: no question with answers{where}")
    retrieved = _retrieved(part, questions, may_lack=serving)
    if serving and retrieved is not None:
        questions = [question for question in questions if question.text in retrieved]
    examples = []
    for question in questions:
        matcher = AnswerMatcher(question.answers, question.answer_profile)
        candidates: Iterable[Candidate] = (retrieved or {}).get(question.text, ())
        if not (serving and candidates):
            candidates = (
                _windows(question, matcher, part.window_words)
                if part.window_words
                else _each_text_once(question, candidates)
            )
        examples.append(
            Example(
                question.id,
                question.text,
                question.answers,
                tuple(_judged(candidates, matcher)),
                answer_profile=question.answer_profile,
                answer_starts=question.answer_starts,
            )
        )
    return examples


def _retrieved(
    part: TrainingSet, questions: Sequence[Question], *, may_lack: bool
) -> dict[str, tuple[Candidate, ...]] | None:
    """The retrieved passages of each question, by its text; None: the set has none."""
    # Results of `rag retrieve`, and files of FiD, hold their passages themselves.
    path = part.retrieved or ("ctxs" in questions[0].meta and part.questions)
    if not path:
        return None
    texts = {question.text for question in questions}
    retrieved = {}
    for example in read_examples(path, needs="questions"):
        retrieved[example.question] = example.of_role("retrieved")
    retrieved = {text: found for text, found in retrieved.items() if found and text in texts}
    if len(retrieved) < len(texts) / 2 and not may_lack:
        raise DataError(
            f"{path}: knows only {len(retrieved)} of {len(texts)} questions of {part.questions}",
            hint="run `rag retrieve` for these questions",
        )
    return retrieved


def _shortened(part: TrainingSet, question: Question) -> Question:
    """The question without the answers that are too long; SQuAD's places belong to its first answer
    alone.
    """
    if not part.labelled:
        return replace(question, answers=(), answer_starts=())
    if not part.max_answer_words or question.answer_profile == REGEX_PROFILE:
        return question
    most = part.max_answer_words
    short = tuple(answer for answer in question.answers if len(answer.split()) <= most)
    starts = question.answer_starts if short[:1] == question.answers[:1] else ()
    return replace(question, answers=short, answer_starts=starts)


def _is_used(question: Question, part: TrainingSet) -> bool:
    """Whether a question teaches something, and is of the part that the set asks for."""
    is_asked_for = all(str(question.meta.get(name)) == of for name, of in part.where.items())
    return is_asked_for and (bool(question.answers) or part.unanswerable or not part.labelled)


def _judged(candidates: Iterable[Candidate], matcher: AnswerMatcher) -> Iterator[Candidate]:
    """The candidates, each with whether it holds an answer."""
    for candidate in candidates:
        holds = candidate.has_answer
        if holds is None:
            holds = matcher.matches(candidate.passage.text)
        yield replace(candidate, has_answer=holds)


def _each_text_once(question: Question, retrieved: Iterable[Candidate]) -> Iterable[Candidate]:
    """Gold passages, the set's distractors and what was retrieved."""
    unique: dict[str, Candidate] = {}
    for item in (*question.gold, *question.context):
        role: Role = "positive" if item in question.gold else "hard_negative"
        if item.passage.text.strip():
            unique.setdefault(item.passage.text, Candidate(item.passage, role, score=0.0))
    for candidate in retrieved:
        unique.setdefault(candidate.passage.text, candidate)
    return unique.values()


def _windows(question: Question, matcher: AnswerMatcher, words: int) -> Iterator[Candidate]:
    """Windows of the gold passages, of each those that share most words with the question first.

    A window is longer where it would cut an answer. If the set annotates the answer's position,
    windows that contain the same words elsewhere are skipped.
    """
    question_words = set(normalize_answer(question.text).split())
    for item in question.gold:
        text = item.passage.text
        spans = _annotated(question, text) or matcher.places(text)
        windows: list[Candidate] = []
        for begin, end in window_bounds(text, words, spans):
            window = Passage("", item.passage.title, text[begin:end])
            holds = any(begin <= start and last <= end for start, last in spans)
            if holds or not matcher.matches(window.text):
                shared = len(question_words & set(normalize_answer(window.text).split()))
                role: Role = "positive" if holds else "hard_negative"
                windows.append(Candidate(window, role, score=float(shared), has_answer=holds))
        yield from sorted(windows, key=lambda candidate: -(candidate.score or 0.0))


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
        end = places[stop - 1][1]
        for start, last in spans:
            while start < end < last and stop < len(places):
                end = places[stop][1]
                stop += 1
        yield places[first][0], end
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
    spans: tuple[TokenSpans, ...]


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
    tokenizer: PreTrainedTokenizerBase,
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
    numbered = []
    for number, (part, examples) in enumerate(sets):
        for example in examples:
            kind = answer_type(example) if part.labelled else UNLABELLED
            roles = _roles(example, answer_types, negatives_top_k)
            numbered.append((number, example, kind, roles))
    numbers: dict[tuple[str, str], int] = {}  # title and text of a passage → its number
    for _, _, _, roles in numbered:
        for candidate, _ in roles:
            numbers.setdefault(_key(candidate), len(numbers))
    texts = tokenize_texts(tokenizer, [text for _, text in numbers])
    titles = tokenize_texts(tokenizer, [title for title, _ in numbers])
    tokenized = tokenize_texts(tokenizer, [example.question for _, example, _, _ in numbered])
    questions: list[TrainingQuestion] = []
    for n, (number, example, kind, roles) in enumerate(numbered):
        passages = []
        spans: list[TokenSpans] = []
        for candidate, places in roles:
            passage = numbers[_key(candidate)]
            located = tuple(texts.located(passage, places or (), _MAX_ANSWER_TOKENS))
            if places is None or located or kind != SPAN:
                passages.append(passage)
            if places is not None and (located or kind != SPAN):
                spans.append(located)
        if spans or (passages and not example.answers):
            tokens = tokenized.tokens(n)
            questions.append(TrainingQuestion(tokens, number, kind, tuple(passages), tuple(spans)))
    if len(questions) < len(numbered):
        get_logger(__name__).warning(
            "%d of %d questions left out: no passage of theirs holds an answer of at most %d tokens",
            len(numbered) - len(questions),
            len(numbered),
            _MAX_ANSWER_TOKENS,
        )
    if not questions:
        raise DataError(
            "no question has a passage that answers it",
            hint="give gold passages, or `retrieved` results that hold the answers",
        )
    return ReaderExamples(questions, titles, texts, pair_template(tokenizer))


def _key(candidate: Candidate) -> tuple[str, str]:
    return candidate.passage.title, candidate.passage.text


def _roles(example: Example, answer_types: bool, most: int) -> list[Judged]:
    """Positive passages with the places of the answers in them, then the best negatives."""
    kind = answer_type(example)
    if kind != SPAN and not answer_types:
        return []
    has_gold = any(candidate.has_answer for candidate in example.of_role("positive"))
    matcher = AnswerMatcher(example.answers, example.answer_profile)
    positives: list[Judged] = []
    negatives: list[Judged] = []
    for candidate in example.candidates:
        is_gold = candidate.role == "positive"
        if kind != SPAN and is_gold:
            positives.append((candidate, []))
        elif kind == SPAN and example.answers and candidate.has_answer:
            text = candidate.passage.text
            annotated = _annotated(example, text) if is_gold else []
            places = list(dict.fromkeys([*annotated, *matcher.places(text)]))
            if places and (is_gold or not has_gold):
                positives.append((candidate, places[:_MAX_SPANS]))
        else:
            negatives.append((candidate, None))
    return positives + negatives[:most]


def _annotated(question: Question | Example, text: str) -> list[tuple[int, int]]:
    """The place that SQuAD states for the first answer, if it stands there in this text."""
    if not question.answers or not question.answer_starts:
        return []
    answer = question.answers[0]
    start = question.answer_starts[0]
    if not answer or not text.startswith(answer, start):
        return []
    return [(start, start + len(answer))]
