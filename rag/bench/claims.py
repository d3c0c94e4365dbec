"""Claims with evidence, made of questions.

    python -m rag.bench.claims squad/train-v1.1.json.gz hotpotqa/train.json.gz --out made.jsonl --seed 7

Each question becomes a statement (`rag.bench.statements`) with its answer, or with another name,
number or date of its passages. In half of the passages the answer is exchanged in the same way, so
that neither claim nor evidence alone tells the label: supported is a claim that agrees with its
evidence, whatever is true. Some claims are negated; some evidence is that of another question, or
lacks one of two articles: not enough. The same files and seed give the same claims.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cyclopts import run

from rag.adaptation.questions import answers_in
from rag.bench.statements import base_verbs, negated, statement
from rag.core.types import Question
from rag.data.files.rows import write_json_lines
from rag.data.questions import read_questions
from rag.data.sentences import sentence_spans, split_sentences

_LONGEST_ANSWER = 6  # words
_NEGATED = 0.1  # shares of the claims
_LACKING = 0.12
_EXCHANGED = 0.7
_SHORT = 0.8  # of the passages, those that are cut to the sentences around the answer
_TITLED = 0.5  # of these passages, those that stand below their title
_AROUND = 1  # sentences before and behind it
_ASKED = {
    "date": "when|year|date|century|decade",
    "number": "how many|how much|percent",
    "name": "who|where|whom|city|country",
}
_LABELS = {True: "supported", False: "refuted"}

Kinds = frozenset[str]


def make_claims(
    questions: Iterable[Question], seed: int, *, facts: bool = False
) -> Iterator[dict[str, object]]:
    """A claim of each question that becomes a statement, with `set` "made".

    Args:
        facts: claims to search for: their evidence is as it stands, and named by title and sentence
            in HoVer's form.
    """
    questions = [question for question in questions if question.gold]
    verbs = base_verbs({item.passage.text for question in questions for item in question.gold})
    answers = defaultdict[tuple[str, Kinds, str], list[str]](list)
    for question in questions:
        answer = _short_answer(question)
        if answer:
            answers[_key(question, answer)].append(answer)
    for question in questions:
        answer = _short_answer(question)
        key = _key(question, answer)
        draw = random.Random(f"{seed} {question.id}")
        made = _of_question(
            question, answer, key[1], answers[key], verbs, draw, exchanges=not facts
        )
        if made is None:
            continue
        if facts:
            del made["evidence"]
            named = []
            for item in question.gold:
                named += [[item.passage.title, number] for number in item.supporting]
            made["supporting_facts"] = named
        yield {"id": f"made-{question.id}", "set": "made", **made}


def _short_answer(question: Question) -> str:
    """The first answer without marks around it; "" of a question without one, or with a long one."""
    answer = question.answers[0].strip(" .,;:\"'") if question.answers else ""
    return answer if len(answer.split()) <= _LONGEST_ANSWER else ""


def _key(question: Question, answer: str) -> tuple[str, Kinds, str]:
    """What questions with answers of one type share: article, kinds, and the word that asks."""
    kinds = _kinds(answer) if answer else _asked_kinds(question.text)
    return question.gold[0].passage.title, kinds, _question_word(question.text)


def _of_question(
    question: Question,
    answer: str,
    kinds: Kinds,
    alike: Sequence[str],
    verbs: frozenset[str],
    draw: random.Random,
    *,
    exchanges: bool,
) -> dict[str, Any] | None:
    if (question.answers and not answer) or not statement(question.text, "it", verbs):
        return None
    if answer in ("yes", "no"):
        claim = statement(question.text, answer, verbs)
        return _record(claim, _LABELS[answer == "yes"], _evidence_of(question, "", draw), draw)
    other = _other_answer(question, answer, kinds, alike, draw)
    if not other:
        return None
    phrase = draw.choice((answer, other)) if answer else other
    claim = statement(question.text, phrase, verbs)
    evidence = _evidence_of(question, answer, draw)
    if not answer:
        return _record(claim, "not_enough", evidence, draw)
    true_answer = answer
    if exchanges:
        if draw.random() < _LACKING:
            return _record(claim, "not_enough", _without(evidence, answer, draw), draw)
        # A phrase in the place of another would make no sense, and a text must not contradict itself.
        is_whole = any(answer in text for text in evidence) and other not in " ".join(evidence)
        if kinds and is_whole and draw.random() < _EXCHANGED:
            true_answer = other
            evidence = [_exchanged(text, answer, other) for text in evidence]
    return _record(claim, _LABELS[phrase == true_answer], evidence, draw)


def _record(
    claim: str, label: str, evidence: Sequence[str], draw: random.Random
) -> dict[str, Any] | None:
    """The claim, perhaps negated; None without a claim or without evidence."""
    if not claim or not evidence:
        return None
    opposite = negated(claim)
    if opposite and label != "not_enough" and draw.random() < _NEGATED:
        claim = opposite
        label = _LABELS[label != "supported"]
    return {"claim": claim, "label": label, "evidence": list(evidence)}


def _kinds(text: str) -> Kinds:
    """Kinds of what a text mostly consists of: of names, numbers, dates; empty of other phrases."""
    found = answers_in(f"is {text}")
    return frozenset(kind for kind, (start, end) in found if end - start > len(text) / 2)


def _overlaps(phrase: str, other: str) -> bool:
    words = set(re.findall(r"\w+", phrase.lower()))
    return bool(words & set(re.findall(r"\w+", other.lower())))


def _other_answer(
    question: Question, answer: str, kinds: Kinds, alike: Sequence[str], draw: random.Random
) -> str:
    """Another answer of the article to such a question, or a name, number or date of the passages;
    "" if there is none.
    """
    if not kinds:
        n_words = len(answer.split())
        alike = [other for other in alike if abs(len(other.split()) - n_words) < 2]
    near = []
    for item in question.gold:
        for start, end in sentence_spans(item.passage.text):
            sentence = item.passage.text[start:end]
            for kind, (first, last) in answers_in(sentence):
                if kind in kinds:
                    near.append(sentence[first:last])
    asked = question.text.lower()
    for candidates in draw.sample([alike, near], 2):
        fitting = {
            other
            for other in candidates
            if not _overlaps(other, answer) and other.lower() not in asked
        }
        if fitting:
            return draw.choice(sorted(fitting))
    return ""


def _question_word(question: str) -> str:
    """The word that asks, with what it asks for: "who", "what city"."""
    match = re.search(r"\b(?:who|whom|where|when|how many|(?:what|which) \w+)\b", question.lower())
    return match[0] if match else ""


def _asked_kinds(question: str) -> Kinds:
    """The kind that a question without an answer asks for; empty if it is not clear."""
    for kind, words in _ASKED.items():
        if re.search(rf"\b(?:{words})\b", question.lower()):
            return frozenset([kind])
    return frozenset()


def _evidence_of(question: Question, answer: str, draw: random.Random) -> list[str]:
    """The gold passages, some of them cut to the sentences that matter."""
    texts = []
    for item in question.gold:
        text = item.passage.text
        if draw.random() < _SHORT:
            numbers = range(len(item.sentences))
            wanted = [item.sentences[n].strip() for n in item.supporting if n in numbers]
            text = " ".join(wanted) or _around_answer(question, text, answer, draw)
        is_titled = len(question.gold) > 1 or draw.random() < _TITLED
        texts.append(f"{item.passage.title}: {text}" if is_titled else text)
    return texts


def _around_answer(question: Question, text: str, answer: str, draw: random.Random) -> str:
    """The sentence with the answer, or any where there is none, and perhaps its neighbours."""
    spans = sentence_spans(text)
    start = question.answer_starts[0] if question.answer_starts else text.find(answer)
    number = draw.randrange(len(spans))
    if answer and start >= 0:
        number = max(number for number, span in enumerate(spans) if span[0] <= start)
    first = max(0, number - draw.randint(0, _AROUND))
    last = min(len(spans) - 1, number + draw.randint(0, _AROUND))
    return text[spans[first][0] : spans[last][1]]


def _without(evidence: Sequence[str], answer: str, draw: random.Random) -> list[str]:
    """Evidence that does not suffice: one of two passages, or the sentences without the answer."""
    if len(evidence) > 1:
        return [text for text in evidence if answer not in text][:1]
    sentences = split_sentences(evidence[0])
    kept = [sentence for sentence in sentences if not _overlaps(sentence, answer)]
    draw.shuffle(kept)
    return [" ".join(kept)] if kept else []


def _exchanged(text: str, before: str, after: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(before)}(?!\w)", after.replace("\\", ""), text)


def main(
    files: list[Path], /, *, out: Path, most: int = 100_000, facts: bool = False, seed: int = 7
) -> None:
    """Write the claims of all files.

    Args:
        files: Questions.
        out: File of the claims.
        most: Claims of a file at most.
        facts: Claims to search for, of HoVer's form.
        seed: Random seed.
    """
    made: list[dict[str, Any]] = []
    for file in files:
        of_file = list(make_claims(read_questions(file), seed, facts=facts))
        made += random.Random(seed).sample(of_file, min(most, len(of_file)))
    print(f"{write_json_lines(out, made):,} claims → {out}")


if __name__ == "__main__":
    run(main)
