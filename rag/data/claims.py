"""Claims: which texts are claims, and the published claim sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import DataError, QuestionError
from rag.core.types import Claim, ClaimLabel, GoldSentence
from rag.data.files.fields import is_strings
from rag.data.files.rows import read_rows, refuse_bad
from rag.data.metadata import is_list
from rag.data.records import check_questions, fault_of_question, rows_of
from rag.data.sentences import split_sentences

MAX_CLAIM_WORDS = 200
MAX_CLAIM_CHARS = 4_000
_LABELS: Mapping[str, ClaimLabel] = {
    **dict.fromkeys(("SUPPORTED", "SUPPORTS", "SUPPORT"), "supported"),
    **dict.fromkeys(("REFUTED", "REFUTES", "CONTRADICT"), "refuted"),
    **dict.fromkeys(("NOT ENOUGH INFO", "NOT_ENOUGH"), "not_enough"),
    "NOT_SUPPORTED": "not_supported",
}
# What FEVER writes for signs that its files of Wikipedia keep for themselves.
_FEVER_SIGNS = (
    ("_", " "),
    ("-LRB-", "("),
    ("-RRB-", ")"),
    ("-LSB-", "["),
    ("-RSB-", "]"),
    ("-COLON-", ":"),
)
_ASKS = r"(?:is|are|was|were|do|does|did|has|have|had|can|could|should|would)\b"
_WORDS = r"\W*(?:(?:in|on|at|of|for|from|by|with|to|and|but|so)\s+)?(?:who|whom|what|which|when|where|why|how)\b"
# A title may end in a question mark ("She plays a part in Why Him?"): then its last word is a name.
_QUESTION = re.compile(
    rf"(?:(?i:{_WORDS}|\W*{_ASKS}).*|.*\b[^\WA-Z]\w*\W*)[?？؟][^\w?？؟]*\Z"
    rf"|(?i:{_WORDS}\s+(?:{_ASKS}|many\b|much\b))(?!.*[.!]\W*\Z)",
    re.DOTALL,
)
# A capital after the pronoun makes a name of the two ("It Happened One Night").
_HANGS = re.compile(
    r"\W*(?i:(?:and|but|so|also|then|yet|still|however|moreover|furthermore|instead|therefore|thus|hence"
    r"|meanwhile|later|afterwards?|nevertheless|similarly|for example|in addition|as a result),?\s+)?"
    r"(?i:he|she|it|they|his|her|hers|its|their|theirs|him|them|this|that|these|those)\b"
    r"(?!\s+[A-Z])"
)


def check_claims(claims: Iterable[str], top_k: int, *, in_text: bool = False) -> list[str]:
    """The claims as a list; refuses those that are empty, too long, or not valid text.

    Args:
        in_text: the claims are sentences of a text; long sentences are then left unjudged, not
            refused.

    Raises:
        ConfigError: `top_k` is out of range.
        DataError: the claims are not a list.
        QuestionError: a claim is no text, is blank, or has more than `MAX_CLAIM_WORDS` words.
    """
    check_questions((), top_k)
    checked = rows_of(claims, "claims")
    for number, claim in enumerate(checked):
        fault = fault_of_question(claim) or ("" if in_text else fault_of_length(claim))
        if fault:
            which = f"claim {number}" if len(checked) > 1 else "the claim"
            raise QuestionError(
                f"{which} {fault}", hint="a claim is one sentence, which a text may support"
            )
    return checked


def fault_of_length(claim: str) -> str:
    """Why this is too long for a claim, to follow "the claim"; "" if it is not.

    Example:
        >>> fault_of_length("so " * 201), fault_of_length("Ulm lies on the Danube.")
        ('has 201 words, more than 200', '')
    """
    words = len(claim.split())
    if words > MAX_CLAIM_WORDS:
        return f"has {words} words, more than {MAX_CLAIM_WORDS}"
    if len(claim) > MAX_CLAIM_CHARS:
        return f"has {len(claim)} characters, more than {MAX_CLAIM_CHARS}"
    return ""


def why_not_judged(claim: str, *, in_text: bool = False) -> str:
    """Why no text can support or refute this; "" if it is a claim.

    Args:
        in_text: the claim is a sentence of a text, and may hang on the sentence before it.

    Example:
        >>> why_not_judged("Where does the Danube rise?")
        'a question is no claim'
        >>> why_not_judged("* * *")
        'signs without a word are no claim'
        >>> why_not_judged("However, it is long.", in_text=True)
        'this sentence hangs on the one before it: name what it speaks of'
        >>> why_not_judged("It Happened One Night is a film.", in_text=True)
        ''
    """
    if _QUESTION.match(claim):
        return "a question is no claim"
    if re.search(r"\w", claim) is None:
        return "signs without a word are no claim"
    if not in_text:
        return ""
    too_long = fault_of_length(claim)
    if too_long:
        return f"this sentence {too_long}"
    if _HANGS.match(claim):
        return "this sentence hangs on the one before it: name what it speaks of"
    return ""


def sentences_of_file(path: str | Path) -> list[str]:
    """The sentences of a text file.

    Raises:
        DataError: no such file, it is no text in UTF-8, or there is no word in it.
    """
    sentences = list[str]()
    for line in read_rows(str(path), format="text"):
        sentences += split_sentences(refuse_bad(line)["question"])
    if not sentences:
        raise DataError(f"{path}: no sentences in it")
    return sentences


def read_claims(path: str | Path) -> Iterator[Claim]:
    """Stream the claims of a file in the published form of FEVER, HoVer, SciFact or Fool Me Twice,
    or of lines `{"id", "claim", "label", "evidence": [text, …]}`.

    A claim without id is called `c` and its line or record number; a claim without label is not
    scored. SciFact has no label for a claim: it is that of its evidence, and "not_enough" without.

    Raises:
        DataError: no such file, no claim in it, an id that is used twice, or a record with an
            unknown label, or with evidence that names no article; with its place.
    """
    locations: dict[str, str] = {}
    for record in read_rows(str(path), otherwise="jsonl"):
        value = refuse_bad(record)
        try:
            claim = _claim_of(value, f"c{record.number}")
        except ValueError as error:
            raise DataError(f"{record.location}: {error}") from error
        except (TypeError, LookupError, AttributeError) as error:
            problem = f"{record.location}: a field has another shape than expected ({error})"
            raise DataError(problem, hint="see `rag docs evaluating`") from error
        if claim.id in locations:
            raise DataError(
                f"{record.location}: the claim id {claim.id!r} was used before, at {locations[claim.id]}",
                hint="make the ids unique, or leave them out",
            )
        locations[claim.id] = record.location
        yield claim
    if not locations:
        raise DataError(f"{path}: no claims in it")


def _claim_of(record: Mapping[str, Any], fallback_id: str) -> Claim:
    rest = dict(record)
    identifier = rest.pop("id", rest.pop("uid", fallback_id))
    # Fool Me Twice calls a claim its text.
    name = "text" if "gold_evidence" in rest else "claim"
    if name not in rest:
        raise ValueError(f"found the fields {', '.join(record)}, expected the claim in {name!r}")
    text = rest.pop(name)
    fault = fault_of_question(text)
    if fault:
        raise ValueError(f"the claim {fault}")
    label = _label_of(rest.pop("label", None))
    evidence = rest.pop("evidence", None) or []
    texts: Sequence[str] = ()
    if isinstance(record.get("evidence"), Mapping):
        label, gold_sets = _of_scifact(record["evidence"])
    elif "supporting_facts" in rest:
        gold_sets = [[_gold_sentence(*fact) for fact in rest.pop("supporting_facts")]]
    else:
        title = rest.get("title", "")
        if "gold_evidence" in rest:
            title = rest.pop("wikipedia_page")
            evidence = [sentence["text"] for sentence in rest.pop("gold_evidence")]
        if is_strings(evidence):
            texts = evidence
            gold_sets = [[GoldSentence(title, text=sentence) for sentence in texts]]
        else:
            gold_sets = [_fever_set(group) for group in evidence]
    sets = () if label == "not_enough" else tuple(map(tuple, filter(None, gold_sets)))
    return Claim(str(identifier), text, label, tuple(texts), sets, rest)


def _label_of(label: object) -> ClaimLabel | None:
    if label is None:
        return None
    if str(label).upper() not in _LABELS:
        raise ValueError(f"unknown label {label!r:.60}, expected one of {', '.join(_LABELS)}")
    return _LABELS[str(label).upper()]


def _fever_set(group: Sequence[Sequence[Any]]) -> list[GoldSentence]:
    """FEVER's set of `[annotation, evidence, title, sentence]`; that of a claim without enough
    information has no title.
    """
    if not is_list(group) or not all(is_list(row) and len(row) == 4 for row in group):
        raise ValueError(f"evidence is neither texts nor FEVER's sets of four ({group!r:.60})")
    return [_gold_sentence(*row[2:]) for row in group if row[2:] != [None, None]]


def _of_scifact(
    evidence: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[ClaimLabel | None, list[list[GoldSentence]]]:
    sets = []
    labels = set[ClaimLabel | None]()
    for document, rationales in evidence.items():
        for rationale in rationales:
            labels.add(_label_of(rationale["label"]))
            sets.append([_gold_sentence(document, number) for number in rationale["sentences"]])
    if len(labels) > 1:
        raise ValueError("some evidence supports the claim, and some contradicts it")
    return next(iter(labels), "not_enough"), sets


def _gold_sentence(article: object, number: object) -> GoldSentence:
    is_number = isinstance(number, int) and number >= 0
    if not isinstance(article, str) or not article or not is_number:
        raise ValueError(
            f"evidence names no article and sentence ({article!r:.60}, sentence {number!r})"
        )
    return GoldSentence(plain_title(article), int(str(number)))


def plain_title(title: str) -> str:
    """A title of FEVER as people write it.

    Example:
        >>> plain_title("Soul_Food_-LRB-film-RRB-")
        'Soul Food (film)'
    """
    for sign, plain in _FEVER_SIGNS:
        title = title.replace(sign, plain)
    return title


def fever_title(title: str) -> str:
    """A title as FEVER's files have it; the inverse of `plain_title`."""
    for sign, plain in _FEVER_SIGNS:
        title = title.replace(plain, sign)
    return title
