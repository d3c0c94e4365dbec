"""Questions turned into statements that hold the answer, by rules for the shapes of English questions."""

import re
from collections.abc import Iterable

from rag.data.sentences import word_set

_BE = "is|are|was|were"
_HELP = "did|does|do|can|could|will|would|should|must"
_PREPOSITIONS = word_set(
    "in on at of for to by with from into during about as after before against between under over around through"
)
_TIMES = word_set("year month day date decade century season era period")
# Participles and past tenses without -ed, as far as they are frequent.
_IRREGULAR = (
    "born built made held known found won written sung led lost taken given begun become seen sent sold spoken"
    " shot set drawn driven felt fought grown hit kept left lent met paid put read run said shown sunk spent"
    " stolen taught told thought thrown understood worn wrote went came began took gave got became saw ran sang"
    " stood fell rose broke broken chosen chose"
)
_PAST = rf"(?:[a-z]{{2,}}ed|{'|'.join(_IRREGULAR.split())})"
_NOUNS = rf"(?:(?!(?:{_BE}|{_HELP}|has|have|had)\b)[\w'’-]+ ?){{1,4}}?"
_DETERMINER = r"(?:the|an?|one|its|his|her|their|[A-Z][\w.-]*(?: [A-Z][\w.-]*)*['’]s?) "
_QUESTION = re.compile(
    r"(?P<before>(?:in|on|at|during|for|from|to|by|with|of|under|around) )?"
    rf"(?P<wh>when|where|who|whom|how many(?: {_NOUNS})??|(?:what|which)(?: {_NOUNS})??) ?\b"
    rf"(?P<verb>{_BE}|{_HELP}|has|have|had|{_PAST}|(?<!how many )[a-z]{{3,}}s) (?P<rest>.+)",
    re.IGNORECASE,
)
_IN_PLACE = re.compile(
    r"(?P<before>(?!(?:who|what|which|when|where|how|why|whose|is|are|was|were|do|does|did|has|have)\b).+ )"
    r"(?P<wh>what|which|who|whom|where|when|how many)(?P<noun>(?: [a-z]+){0,2})",
    re.IGNORECASE,
)
_PAIR = re.compile(
    rf"(?P<verb>{_BE}|do|did|does|have|has) (?P<pair>.+? and .+?),? (?P<rest>(?:both|the|an?|from|in|of|on"
    r"|located|part|members|based|considered)\b.*)",
    re.IGNORECASE,
)
_SECOND = re.compile(rf"(?P<subject>\S.*?) (?P<verb>{_PAST}|located|situated)\b(?P<rest>.*)")
_CALLED = re.compile(r"(?P<subject>.+) (?P<verb>called|named|known as|nicknamed|titled)")
_NOT = re.compile(r"\b(is|are|was|were|did|does|do|can|could|will|would|has|have|had)\b(?! not\b)")


def base_verbs(texts: Iterable[str]) -> frozenset[str]:
    """Words that texts use as verbs without an ending: often behind "to" or "would", hardly ever
    behind an article.
    """
    counts: dict[str, list[int]] = {}
    for text in texts:
        for cue, word in re.findall(r"\b(to|would|could|will|did not|the|an?|of) ([a-z]+)\b", text):
            counts.setdefault(word, [0, 0])[cue in ("the", "a", "an", "of")] += 1
    return frozenset(word for word, (verb, noun) in counts.items() if verb > 2 and verb > 2 * noun)


def statement(question: str, answer: str, verbs: frozenset[str]) -> str:
    """The statement that a question asks about, with the answer in its place; "" if no rule fits.

    Args:
        answer: "yes" or "no" for questions about a pair, whose statement is the one that "yes" means.
        verbs: of `base_verbs`.

    Example:
        >>> verbs = frozenset(["marry", "open"])
        >>> statement("Who wrote Emma?", "Jane Austen", verbs)
        'Jane Austen wrote Emma.'
        >>> statement("When did the Louvre open?", "1793", verbs)
        'The Louvre did open in 1793.'
        >>> statement("Are Ulm and Bonn both cities?", "no", verbs)
        'Ulm and Bonn are both cities.'
    """
    text = " ".join(question.split()).rstrip(" ?.")
    if answer in ("yes", "no"):
        pair = _PAIR.fullmatch(text)
        made = f"{pair['pair']} {pair['verb'].lower()} {pair['rest']}" if pair else ""
        return _finished(made)
    match = _QUESTION.fullmatch(text)
    if match is not None:
        return _finished(_of_question(match, answer, verbs))
    match = _IN_PLACE.fullmatch(text)
    if match is None:
        return ""
    before = match["before"]
    noun = match["noun"] if match["wh"].lower() == "how many" else ""
    if match["wh"].lower() in ("where", "when"):
        answer = _placed(before.split()[-1] if before.split()[-1] in _PREPOSITIONS else "", answer)
        before = before.removesuffix(answer.split()[0] + " ")
    return _finished(f"{before}{answer}{noun}")


def negated(claim: str) -> str:
    """A statement with "not" behind its first auxiliary verb; "" if it has none.

    Example:
        >>> negated("Ulm is a city."), negated("Ann wrote it.")
        ('Ulm is not a city.', '')
    """
    return _NOT.sub(r"\1 not", claim, count=1) if _NOT.search(claim) else ""


def _finished(text: str) -> str:
    text = text.strip(" ,")
    words = text.split()
    if len(words) < 4 or words[-1].lower() in _PREPOSITIONS:
        return ""
    return f"{text[0].upper()}{text[1:]}."


def _placed(preposition: str, answer: str) -> str:
    """A time or place behind a verb, with a preposition where it has none."""
    first = answer.split()[0].lower()
    if first in _PREPOSITIONS:
        return f"{first}{answer[len(first) :]}"
    if first in ("since", "until", "near", "late", "early"):
        return answer
    if preposition:
        return f"{preposition.strip().lower()} {answer}"
    has_day = re.search(r"[A-Z][a-z]+ \d{1,2}\b|\b\d{1,2} [A-Z]", answer) is not None
    return f"on {answer}" if has_day else f"in {answer}"


def _of_question(match: re.Match[str], answer: str, verbs: frozenset[str]) -> str:
    verb = match["verb"].lower()
    is_present = not re.fullmatch(rf"{_BE}|{_HELP}|has|have|had|{_PAST}", verb)
    if is_present and verb[:-1] not in verbs and verb[:-2] not in verbs:
        return ""
    word, *nouns = match["wh"].lower().split()
    noun = nouns[-1] if nouns else ""
    if match["before"] or word in ("when", "where") or noun in _TIMES:
        return _adverbial(match, _placed(match["before"] or "", answer), verbs)
    if word == "how" and not answer.endswith(noun):
        answer = " ".join([answer, *nouns[1:]])
    return _noun_phrase(match, answer, verbs)


def _adverbial(match: re.Match[str], adverb: str, verbs: frozenset[str]) -> str:
    """ "When was X born" → "X was born in 1900", "When did X open" → "X did open in 1900"."""
    verb = match["verb"].lower()
    rest = match["rest"]
    if re.fullmatch(_BE, verb):
        inner = _SECOND.fullmatch(rest)
        if inner is None:
            return f"{rest} {verb} {adverb}"
        return f"{inner['subject']} {verb} {inner['verb']}{inner['rest']} {adverb}"
    if re.fullmatch(_HELP, verb):
        subject, action, more = _split_at_verb(rest, verbs)
        return f"{subject} {verb} {action}{more} {adverb}" if action else ""
    return ""


def _noun_phrase(match: re.Match[str], answer: str, verbs: frozenset[str]) -> str:
    """The answer as subject, as what "is" equates, or as object."""
    verb = match["verb"].lower()
    rest = match["rest"]
    is_bare = len(match["wh"].split()) == 1
    if re.fullmatch(_HELP, verb):
        subject, action, more = _split_at_verb(rest, verbs)
        is_object = not more or more.split()[0] in _PREPOSITIONS
        if action and is_object and more.split()[-1:] != ["do"]:
            return f"{subject} {verb} {action} {answer}{more}"
        # "What can cause rain" asks for the subject.
        is_subject = rest.split()[0] in verbs and verb not in ("did", "does", "do")
        return f"{answer} {verb} {rest}" if is_subject else ""
    called = _CALLED.fullmatch(rest)
    if re.fullmatch(_BE, verb) and called is not None:
        return f"{called['subject']} {verb} {called['verb']} {answer}"
    if rest.startswith("there"):
        return f"There {verb} {answer}{rest.removeprefix('there')}"
    if rest.split()[-1].lower() in _PREPOSITIONS:
        return ""
    asks_kind = re.match(r"(?:what|which) (?:type|kind|sort)\b", match["wh"], re.IGNORECASE)
    is_equation = (is_bare or asks_kind) and re.fullmatch(_BE, verb) and re.match(_DETERMINER, rest)
    if is_equation and match["wh"].lower() != "who":
        return f"{rest} {verb} {answer}"
    if re.fullmatch(_BE, verb) and not is_equation:
        # "What was Ann famous for writing" is neither.
        is_predicate = re.match(rf"(?:{_PAST}|[a-z]+ing|{'|'.join(_PREPOSITIONS)})\b", rest)
        return f"{answer} {verb} {rest}" if is_predicate or not is_bare else ""
    return f"{answer} {verb} {rest}"


def _split_at_verb(rest: str, verbs: frozenset[str]) -> tuple[str, str, str]:
    """Subject, verb without ending, and what follows it, with a blank before; "" if there is no
    verb.
    """
    words = rest.split()
    for number in range(1, len(words)):
        before = words[number - 1].lower()
        if words[number] in verbs and before not in ("the", "a", "an", "of", "to", "and"):
            more = "".join(f" {word}" for word in words[number + 1 :])
            return " ".join(words[:number]), words[number], more
    return rest, "", ""
