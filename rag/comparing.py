"""Questions that compare two things: "Who was born first, A or B?", "Is A larger than B?".

No passage says which of two was first; one says when the first was born, and another when the second
was. So a policy asks for both values, and the smaller or the larger one decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from rag.core.types import Answer, AnswerSet, Evidence
from rag.data.sentences import sentence_spans
from rag.data.table_text import TextCell, TextRow, table_rows
from rag.quantities import Value, parse_date, parse_quantity, read_table
from readers.borders import find_span

# The adjective of "How … is it?", whether more or less of it is asked for, and the words for that.
_SIZES = read_table(
    """
    large more larger largest bigger biggest greater greatest
    large less smaller smallest
    tall more taller tallest
    tall less shorter shortest
    high more higher highest
    high less lower lowest
    long more longer longest
    deep more deeper deepest
    deep less shallower shallowest
    wide more wider widest
    wide less narrower narrowest
    thick more thicker thickest
    thick less thinner thinnest
    heavy more heavier heaviest
    heavy less lighter lightest
    fast more faster fastest quicker quickest
    fast less slower slowest
    expensive less cheaper cheapest
    far more farther farthest further furthest
    hot more hotter hottest warmer warmest
    hot less colder coldest cooler coolest
    much more more most
    much less less least fewer fewest
    """
)
_SIZE_WORDS = "|".join(_SIZES)
_TIME_WORDS = (
    "first|earlier|earliest|older|oldest|later|latest|recently|younger|youngest|newer|newest"
)
_COMPARED = rf"(?:{_SIZE_WORDS}|{_TIME_WORDS})\b"
# What a name is: from a capital or a digit on, behind words such as "the band"; or else all that
# stands between marks, verbs and comparatives.
_NAMES = (
    r"(?:[a-z]+ )*?(?P<{}>[A-Z\d].*?)",
    r"(?:(?:the|an?|in|on|with|for|by|at) )*(?P<{}>[^\s,:;][^,:;]*?)",
)
_ASKED = r"(?P<asked>(?i:which|who|what)\b"
_IS_ASKED = r"(?P<asked>(?i:is|are|was|were))"
_DOES_ASKED = r"(?P<asked>(?i:did|does|do|has|have|had))"
_FORMS = (
    # "Between A and B, who is older?"
    rf"(?i:(?:in )?between|of) FIRST (?:or|and) SECOND,? {_ASKED}.*)(?P<rest>)",
    # "A or B: which is older?"
    rf"FIRST or SECOND[,:;] {_ASKED}.*)(?P<rest>)",
    # "Which band, A or B, has more members?"
    rf"{_ASKED}[^,]*), FIRST,? or SECOND, (?P<rest>[a-z].*)",
    # "Which band has more members, A or B?"
    rf"{_ASKED}[^,:;?]*?)(?: ?[,:;?] ?| ?--+ ?| - )FIRST,? or SECOND(?P<rest>)",
    # "Who was born first out of A and B?"
    rf"{_ASKED}.* {_COMPARED})(?: out)? of (?!in )FIRST (?:or|and) SECOND(?P<rest>)",
    # "Which is older A or B?"
    rf"{_ASKED}.* (?=\w+er\b){_COMPARED}) FIRST,? or SECOND(?P<rest>)",
    rf"{_ASKED}[^,:A-Z\d]*?) FIRST,? or SECOND(?P<rest>)",
    # "Which of A and B is older?"
    rf"{_ASKED}(?: one)?) of FIRST (?:or|and) SECOND (?P<rest>(?:[a-z]+ ){{1,3}}{_COMPARED}.*)",
    # "Was A or B born first?", "Is A or B larger?"
    rf"{_IS_ASKED} FIRST or SECOND (?P<rest>(?:(?:born|built|made|\w+ed) )?(?:the )?{_COMPARED}.*)",
    # "Does A or B have more members?"
    rf"{_DOES_ASKED} FIRST or SECOND (?P<rest>[a-z]+ (?:out |an? |the )?{_COMPARED}.*)",
)
# Forms of questions for yes or no.
_THAN_FORMS = (
    # "Is A larger than B?"
    rf"{_IS_ASKED} FIRST (?P<rest>(?:an? )?{_COMPARED}.*?) than SECOND",
    # "Does A have more members than B?"
    rf"{_DOES_ASKED} FIRST (?P<rest>[a-z]+ (?:an? |the )?{_COMPARED}.*?) than SECOND",
    # "Are there more members in A than in B?"
    rf"(?P<asked>(?i:is|are|was|were) there {_COMPARED}[^,]*?) (?:in|on|for|with) FIRST than SECOND(?P<rest>)",
)
# What needs more than one value of each thing ("Who lived longer?"), or a value of something else
# ("Which film has the director who died first?"); or no comparison of the two ("more or less than",
# "died older", "does not cost more", the version 1.10); or the smaller value for "faster startup".
_NEEDS_MORE = re.compile(
    r"\b(?:whose|director|that|not|never|cannot|\w+n['’]t|lived|active|career|lifespan|operational"
    r"|or|and|than|(?:more|most|less) of|(?:\w+ed|became|won) (?:the )?(?:old|young)\w+)\b"
    r"| who\b|\bversion(?: number)?$"
    r"|\b(?:fast|quick|slow)e\w+ (?!(?:by|in|on|per|under|with|for|to|of)\b|.*(?:time|speed|rate|pace)\b)\w"
)
_TWO = "(?: of the two)?"
_TIME = re.compile(
    r"(?:(?:which|who|what)\b)?(?P<event>.*?) (?:the )?(?=(?P<age>old|young|new)?)"
    r"(?:(?P<early>first|earlier|earliest|older|oldest)|later|latest|(?:more|most) recently"
    rf"|younger|youngest|newer|newest)(?: in .*)?{_TWO}"
)
_PERSON = re.compile(r"who\b|.*(?:er|or|ian|ist|person) (?:is|was)\b")
_VERB = re.compile(
    r".*?\b(?:(?P<auxiliary>was|were|did) |(?=came|took|began|\w+ed\b)(?!.*\b(?:was|were|did)\b))(?P<verb>.+)"
)
_SIZE = re.compile(
    rf".*?\b(?P<verb>[a-z]+) (?:an? |the )?(?P<size>{_SIZE_WORDS})\b"
    rf"(?: (?P<noun>(?!of the two)[a-z][\w -]*?))??(?P<scope> (?:by|in|on|per|under|with|for|to) .+)?{_TWO}"
)
_RANK = re.compile(r"\b(?:rank|plac|finish|peak|position)")
# What a question is about, before it: "In SQLite, which …", "SQLite: is …".
_TOPIC = re.compile(
    r"(?:(?i:in|on|with|for|by|at) [^,:?]{1,60},|[\w. -]{1,40}:) "
    r"(?=(?i:which|who|what|is|are|was|were|do|does|did)\b)"
)
_PAST = re.compile(r"had$|(?<!ne)ed$")
_MEASURABLE = ("expensive", "populous")
_IS = ("is", "are", "was", "were", "be")
_PREPOSITIONS = ("by", "for", "from", "in", "of", "on", "to", "with", "and", "which", "who", "what")
# Of a question; the forms take long for many names.
_MAX_CHARS = 300
# How far behind a span its unit may stand, or the year of its day.
_CHARS_BEHIND = 12
# Of the cell that names a thing.
_MAX_NAME = 60

_Found = tuple[Value, Answer]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question that compares two things.

    Attributes:
        names: of the things.
        template: the question for the value of one thing, with {} for its name.
        wants_most: whether the larger value wins.
        asks_yes_no: whether the answer is yes if the first thing wins, and no otherwise.
        topic: what stands before the question, "In SQLite, "; or "".
    """

    names: tuple[str, str]
    template: str
    wants_most: bool
    asks_yes_no: bool = False
    topic: str = ""

    @property
    def questions(self) -> tuple[str, ...]:
        """The question for the value of each thing."""
        template = self.template
        if self.topic:
            template = self.topic + template[0].lower() + template[1:]
        return tuple(map(template.format, self.names))

    def decide(self, question: str, read: Sequence[AnswerSet]) -> AnswerSet | None:
        """The name of the thing that wins, with the evidence of both values as its path.

        Args:
            read: the answers to each of `questions`.

        Returns:
            None if a value is not found, or the values are equal or no quantities of one kind.
        """
        first = self._find_value(0, read[0])
        second = self._find_value(1, read[1])
        if first is None or second is None or not _are_comparable(first, second):
            return None
        value, answer = first
        other_value, other = second
        # Of two times the shorter one is faster.
        is_flipped = value[0] == "time" and self.template.startswith("How fast")
        winner = int((value > other_value) != (self.wants_most != is_flipped))
        path = tuple(map(_supported, (answer.evidence, other.evidence), self.questions))
        evidence = path[winner]
        text = self.names[winner]
        if self.asks_yes_no:
            text = ("Yes", "No")[winner]
        else:
            bounds = _bounds_of_name(text, evidence.text)
            if bounds is not None:
                text = evidence.text[slice(*bounds)]
                evidence = replace(evidence, start=bounds[0], end=bounds[1])
        # Two values of which one is wrong are in the right order half of the time.
        confidence = (1.0 + answer.confidence * other.confidence) / 2
        best = Answer(text, 0.0, confidence, evidence, path)
        absent = max(answers.no_answer_confidence for answers in read)
        reading = Counter(read[0].reading) + Counter(read[1].reading)
        return AnswerSet(question, (best,), absent, reading=reading)

    def _find_value(self, number: int, read: AnswerSet) -> _Found | None:
        """The value in the best answer that has one, from a passage that names the thing."""
        name = re.sub(r" \([^()]*\)$", "", self.names[number])
        parse = parse_date if self.template.startswith("When") else parse_quantity
        for answer in read.answers:
            evidence = answer.evidence
            is_stated = re.search(r"\d", answer.text)
            if is_stated and evidence.end is not None and _is_about(name, evidence):
                # A sign or a currency may stand before the span.
                start = max(0, (evidence.start or 0) - 1)
                text = evidence.text[start : evidence.end + _CHARS_BEHIND]
                # "Mb" are bits and "MB" bytes.
                text = re.sub(r"(?<=[kKMGT])b\b", "bit", text)
                value = parse(text.lower().lstrip(".,"))
                if value is not None and self._is_measure(value[0]):
                    return value, answer
        return None

    def _is_measure(self, kind: str | float) -> bool:
        """Whether a value of this kind can answer the template: a year does not say how long something
        was done, and a rank no number of things.
        """
        if kind == "rank":
            return _RANK.search(self.template) is not None
        if self.template.startswith("How fast"):
            return kind in ("speed", "time")
        return kind == "time" or not self.template.startswith("How long d")


def find_comparison(question: str) -> Comparison | None:
    """The comparison that a question asks for, if it does.

    Example:
        >>> comparison = find_comparison("Which is taller, the Shard or Big Ben?")
        >>> comparison.questions, comparison.wants_most
        (('How tall is Shard?', 'How tall is Big Ben?'), True)
        >>> find_comparison("Who wrote Faust?")
    """
    text = " ".join(re.sub(r'["“”{}]', "", question).split()).rstrip(" ?.")
    if len(text) > _MAX_CHARS:
        return None
    # In a question without capitals only a digit would begin a name.
    for name in _NAMES[text.islower() :]:
        for pattern, asks_yes_no in _patterns(name):
            found = pattern.fullmatch(text)
            if found is None:
                continue
            names = (found["first"], found["second"])
            if re.search(r"\b(?:or|than)\b", "\n".join(names)):
                continue
            asked = " ".join(f"{found['asked']} {found['rest']}".lower().replace(",", " ").split())
            asks = _property(asked)
            if asks is not None and not _NEEDS_MORE.search(asked):
                return Comparison(names, *asks, asks_yes_no)
    topic = _TOPIC.match(text)
    if topic is None:
        return None
    comparison = find_comparison(text[topic.end() :])
    return comparison and replace(comparison, topic=topic[0])


@cache
def _patterns(name: str) -> Sequence[tuple[re.Pattern[str], bool]]:
    """Each form with such names, and whether it asks for yes or no."""
    patterns = []
    for form in _FORMS + _THAN_FORMS:
        named = form.replace("FIRST", name.format("first")).replace("SECOND", name.format("second"))
        patterns.append((re.compile(named), form in _THAN_FORMS))
    return patterns


def _property(asked: str) -> tuple[str, bool] | None:
    """The template, and whether the larger value wins, of a question without its names."""
    found = _TIME.fullmatch(asked)
    if found is not None:
        template = "When was {} founded or released?"
        verb = _VERB.fullmatch(found["event"])
        if found["age"]:
            if _PERSON.match(asked):
                template = "When was {} born?"
        elif verb:
            template = f"When {verb['auxiliary'] or 'did'} {{}} {verb['verb']}?"
        else:
            return None
        return template, found["early"] is None
    found = _SIZE.fullmatch(asked)
    if found is None:
        return None
    size, direction = _SIZES[found["size"]]
    noun = found["noun"] or ""
    is_past = asked.startswith("did") or _PAST.search(found["verb"])
    auxiliary = "did" if is_past else "does"
    value_asked = _size_question(size, auxiliary, found["verb"], noun)
    if value_asked is None:
        return None
    # The first rank is the highest, and the shortest time the fastest.
    is_rank = size == "high" and _RANK.search(asked) is not None
    is_time = size == "fast" and "time" in noun
    wants_most = (direction == "more") != (is_rank or is_time)
    return f"{value_asked}{found['scope'] or ''}?", wants_most


def _size_question(size: str, auxiliary: str, verb: str, noun: str) -> str | None:
    """The question for a value, without its mark: of "which has a larger area" from "large", "has"
    and "area".
    """
    is_amount = size == "much"
    if verb == "there":
        return f"How many {noun} are there in {{}}"
    if verb in _IS and is_amount and noun in _MEASURABLE:
        return f"How {noun} is {{}}"
    if verb in _IS and not is_amount and not noun:
        return f"How {size} is {{}}"
    if verb in _IS + _PREPOSITIONS:
        return None
    verb = re.sub(r"(?<!s)s$", "", verb)
    if verb in ("ha", "had"):
        verb = "have"
    if not noun:
        return f"How {size} {auxiliary} {{}} {verb}"
    if is_amount and noun.endswith(("s", "people")):
        return f"How many {noun} {auxiliary} {{}} {verb}"
    if is_amount:
        return f"How much {noun} {auxiliary} {{}} {verb}"
    if verb == "have":
        return f"What is the {noun} of {{}}"
    return f"What {noun} {auxiliary} {{}} {verb}"


def _are_comparable(first: _Found, second: _Found) -> bool:
    """Whether two values are of one kind, differ, and are not of two columns of a table."""
    value = first[0]
    other_value = second[0]
    known = min(len(value), len(other_value))
    if value[0] != other_value[0] or value[:known] == other_value[:known]:
        return False
    places = set()
    columns = set()
    for _, answer in (first, second):
        evidence = answer.evidence
        places.add((evidence.passage_id, evidence.start))
        at = _cell_at(evidence.text, evidence.start or 0)
        if at is not None:
            columns.add(at[1].column)
    return len(places) == 2 and len(columns) <= 1


def _is_about(name: str, evidence: Evidence) -> bool:
    """Whether a passage names the thing; and where the span is in a table, whether its row or column
    does, or the title.
    """
    at = _cell_at(evidence.text, evidence.start or 0)
    if at is None:
        return find_span(name, f"{evidence.title}\n{evidence.text}") is not None
    row, cell = at
    texts = [evidence.title, row.label, cell.column]
    # "Plan: basic" is the basic plan.
    texts += [f"{other.value} {other.column}" for other in row.cells]
    return any(find_span(name, text) for text in texts)


def _cell_at(text: str, start: int) -> tuple[TextRow, TextCell] | None:
    """The cell of a table that a place is in, and its row."""
    for row in table_rows(text):
        for cell in row.cells:
            if cell.start <= start < cell.end:
                return row, cell
    return None


def _bounds_of_name(name: str, text: str) -> tuple[int, int] | None:
    """Where a text names a thing; the whole cell in a table, which may name it in full."""
    bounds = find_span(name, text)
    if bounds is None:
        return None
    at = _cell_at(text, bounds[0])
    if at is not None and len(at[1].value) <= _MAX_NAME:
        return at[1].start, at[1].end
    return bounds


def _supported(evidence: Evidence, question: str) -> Evidence:
    """Evidence for the answer to a question, whose supporting sentence is the one that its span
    begins in, without the span.
    """
    start = evidence.start or 0
    sentence = next(span for span in sentence_spans(evidence.text) if start < span[1])
    return replace(evidence, start=None, end=None, supporting=(sentence,), question=question)
