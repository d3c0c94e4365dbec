"""Questions that compare two named things: "Who was born first, A or B?", "Which is taller, A or B?".

No passage says which of two was first; one says when the first was born, and another when the second
was. So a policy asks for both values, and the smaller or the larger one decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag.core.types import Answer, AnswerSet, Evidence
from rag.data.salient import MONTHS
from rag.data.sentences import sentence_spans
from readers.borders import find_span
from readers.llm.wording import SCALES

Value = tuple[str | float, ...]
"""What is measured ("date", "length", …; "" for a number without a unit), and numbers, the
weightiest first: year, month and day."""


def _table(text: str) -> dict[str, tuple[str, str]]:
    """The words of each line from the third on, with the first two."""
    entries = dict[str, tuple[str, str]]()
    for line in text.strip().splitlines():
        first, second, *names = line.split()
        entries.update(dict.fromkeys(names, (first, second)))
    return entries


# A name begins with a capital or a digit, behind words such as "the band".
_PAIR = r"(?:[a-z]+ )*?(?P<first>[A-Z\d].*?),? {} (?:[a-z]+ )*?(?P<second>[A-Z\d].*?)"
_EITHER = _PAIR.format("or")
_BOTH = _PAIR.format("(?:or|and)")
_ASKED = r"(?P<asked>(?i:which|who|what)\b"
_FORMS = (
    # "Between A and B, who is older?"
    rf"(?i:(?:in )?between) {_BOTH},? {_ASKED}.*)(?P<rest>)",
    # "Which band, A or B, has more members?"
    rf"{_ASKED}[^,]*), {_EITHER}, (?P<rest>[a-z].*)",
    # "Which band has more members, A or B?"
    rf"{_ASKED}(?:[^,:]*(?=[,:])|[^,:A-Z\d]*))[,:]? {_EITHER}(?P<rest>)",
    # "Who was born first out of A and B?"
    rf"{_ASKED}[^,:A-Z\d]*?)(?: out)? of {_BOTH}(?P<rest>)",
    # "Was A or B born first?"
    rf"(?P<asked>(?i:is|was|were|did|does|do|has)) {_EITHER} (?P<rest>[a-z][a-z ]*)",
)
# What needs more than one value of each thing ("Who lived longer?"), or a value of something else
# ("Which film has the director who died first?"). Counts ("Which has more members?") are misread as
# often as not.
_NEEDS_MORE = re.compile(
    r"\b(?:whose|director|that|not|lived|active|career|lifespan|operational|year)\b| who\b"
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
    r".*\b(?:is|are|was|were|be|(?P<has>has|have|had)) (?:a |the )?(?P<size>\w+)"
    rf"(?(has) (?P<noun>[\w ]+)){_TWO}"
)
# The adjective of "How … is it?", whether more or less of it is asked for, and the words for that.
_SIZES = _table(
    """
    large more larger largest bigger biggest
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
    heavy more heavier heaviest
    heavy less lighter lightest
    fast more faster fastest
    fast less slower slowest
    expensive less cheaper cheapest
    """
)
_MONTHS = MONTHS.lower()
_YEAR = re.compile(r"(?<![\d.,])\d{3,4}(?!,?\d|\s*years|.*(?<![a-z])b\.?c)")
_MONTH = re.compile(
    r"(?:(?P<day>\d\d?)(?:st|nd|rd|th)? (?:of )?)?"
    rf"\b(?P<month>{_MONTHS})\b(?: (?P<day_behind>\d\d?)\b)?"
)
_NUMBER = re.compile(
    r"(?P<minus>(?<!\w)[-−–]\s?)?(?P<currency>[$€£])?\s?(?P<digits>\d[\d,]*(?:\.\d+)?)"
    r"(?P<range>\s*(?:[-−–]|to)\s*\d)?"
    r"(?:[\s-]*(?P<scale>thousand|million|billion|trillion|bn\b|(?(currency)[kmb]\b|(?!))))?"
    r"[\s-]*(?P<square>sq(?:uare|\.)? )?"
    r"(?P<unit>%|[a-z]*(?:/(?:sq(?:uare|\.)? )?[a-z]+)?)(?P<squared>²|2\b)?"
)
_SCALES = {**SCALES, "k": 10**3, "m": 10**6, "b": 10**9, "bn": 10**9}
# A dimension, the value of a unit in it, and its names.
_UNITS = _table(
    """
    length 1 m metre metres meter meters
    length 1000 km kilometre kilometres kilometer kilometers
    length 0.01 cm centimetre centimetres centimeter centimeters
    length 0.001 mm millimetre millimetres millimeter millimeters
    length 0.3048 ft foot feet
    length 1609.344 mi mile miles
    length 0.0254 inch inches
    length 0.9144 yd yard yards
    area 1e4 ha hectare hectares
    area 4046.856 acre acres
    mass 1 kg kilogram kilograms
    mass 0.001 g gram grams
    mass 0.45359237 lb lbs pound pounds
    mass 0.0283495 oz ounce ounces
    mass 1000 t ton tons tonne tonnes
    speed 1 m/s metre/second metres/second meter/second meters/second
    speed 0.2777778 km/h kmh kph kilometre/hour kilometres/hour kilometer/hour kilometers/hour
    speed 0.44704 mph mi/h mile/hour miles/hour
    speed 0.5144444 knot knots
    time 1 s second seconds
    time 60 min minute minutes
    time 3600 h hour hours
    time 86400 day days
    time 31557600 year years
    dollars 1 $ dollar dollars
    euros 1 € euro euros
    pounds 1 £
    share 1 % percent
    """
)
# What stands behind a number with its unit and goes on in a smaller one: "6 ft 2 in", "2 h and 5 min".
_PART = re.compile(r"\.?(?:,|,? and)?[\s-]*(?P<digits>\d+(?:\.\d+)?)[¼-¾]?[\s-]*(?P<unit>[a-z]+)")
# "6'2"", "6-foot-2".
_FEET = re.compile(
    r"(?<=\d)(?:\s?['’′]\s?|-foot-)(\d{1,2}(?:\.\d+)?)(?![\d.])(?:[\"”″]|[\s-]?in(?:ch(?:es)?)?\b)?"
)
# Units that say something else where they stand alone.
_OF_PARTS = {"length in": "inch", "time m": "min"}
# Of a question; the forms take long for many names.
_MAX_CHARS = 300
# How far behind a span its unit may stand, or the year of its day.
_CHARS_BEHIND = 12


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question that compares two things.

    Attributes:
        names: of the things.
        template: the question for the value of one thing, with {} for its name.
        wants_most: whether the larger value wins.
    """

    names: tuple[str, str]
    template: str
    wants_most: bool

    @property
    def questions(self) -> tuple[str, ...]:
        """The question for the value of each thing."""
        return tuple(map(self.template.format, self.names))

    def decide(self, question: str, read: Sequence[AnswerSet]) -> AnswerSet | None:
        """The name of the thing that wins, with the evidence of both values as its path.

        Args:
            read: the answers to each of `questions`.

        Returns:
            None if a value is not found, or the values are equal or no quantities of one kind.
        """
        first = self._find_value(0, read[0])
        second = self._find_value(1, read[1])
        if first is None or second is None:
            return None
        (value, answer), (other_value, other) = first, second
        known = min(len(value), len(other_value))
        if value[0] != other_value[0] or value[:known] == other_value[:known]:
            return None
        winner = int((value > other_value) != self.wants_most)
        evidences = (answer.evidence, other.evidence)
        path = tuple(map(_supported, evidences, self.questions))
        name = self.names[winner]
        evidence = path[winner]
        bounds = find_span(name, evidence.text)
        if bounds is not None:
            name = evidence.text[slice(*bounds)]
            evidence = replace(evidence, start=bounds[0], end=bounds[1])
        # Two values of which one is wrong are in the right order half of the time.
        confidence = (1.0 + answer.confidence * other.confidence) / 2
        best = Answer(name, 0.0, confidence, evidence, path)
        absent = max(answers.no_answer_confidence for answers in read)
        reading = Counter(read[0].reading) + Counter(read[1].reading)
        return AnswerSet(question, (best,), absent, reading=reading)

    def _find_value(self, number: int, read: AnswerSet) -> tuple[Value, Answer] | None:
        """The value in the best answer that has one, from a passage that names the thing."""
        name = re.sub(r" \([^()]*\)$", "", self.names[number])
        parse = _date if self.template.startswith("When") else _quantity
        for answer in read.answers:
            evidence = answer.evidence
            is_named = find_span(name, f"{evidence.title}\n{evidence.text}") is not None
            is_stated = re.search(r"\d", answer.text)
            if is_named and is_stated and evidence.end is not None:
                # A sign or a currency may stand before the span.
                start = max(0, (evidence.start or 0) - 1)
                text = evidence.text[start : evidence.end + _CHARS_BEHIND]
                value = parse(text.lower().lstrip(".,"))
                if value is not None:
                    return value, answer
        return None


def find_comparison(question: str) -> Comparison | None:
    """The comparison that a question asks for, if it does.

    Example:
        >>> find_comparison("Which is taller, the Shard or Big Ben?")
        Comparison(names=('Shard', 'Big Ben'), template='How tall is {}?', wants_most=True)
        >>> find_comparison("Who wrote Faust?")
    """
    text = " ".join(re.sub(r'["“”{}]', "", question).split()).rstrip(" ?.")
    if len(text) > _MAX_CHARS:
        return None
    for form in _FORMS:
        found = re.fullmatch(form, text)
        if found is None:
            continue
        names = (found["first"], found["second"])
        if any(" or " in name or name == name.lower() for name in names):
            continue
        asked = " ".join(f"{found['asked']} {found['rest']}".lower().replace(",", " ").split())
        asks = None if _NEEDS_MORE.search(asked) else _property(asked)
        if asks is not None:
            return Comparison(names, *asks)
    return None


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
    size = found and _SIZES.get(found["size"])
    if not found or not size:
        return None
    template = f"How {size[0]} is {{}}?"
    if found["noun"]:
        template = f"What is the {found['noun']} of {{}}?"
    return template, size[1] == "more"


def _date(text: str) -> Value | None:
    """The first date of a text in lower case: year, month and day, as far as it states them.

    Example:
        >>> _date("10 october 1813"), _date("may 1813"), _date("500 bc")
        (('date', 1813.0, 10.0, 10.0), ('date', 1813.0, 5.0), None)
    """
    year = _YEAR.search(text)
    if year is None:
        return None
    numbers = [float(year[0])]
    # A month behind the year is of another date, or the verb "may".
    month = _MONTH.search(text, 0, year.end())
    if month is not None:
        numbers.append(1.0 + _MONTHS.split("|").index(month["month"]))
        day = month["day"] or month["day_behind"]
        if day:
            numbers.append(float(day))
    return ("date", *numbers)


def _quantity(text: str) -> Value | None:
    """The first number of a text in lower case, in the base unit of its dimension.

    Returns:
        None also below zero, and for a range of numbers.

    Example:
        >>> _quantity("2 km wide"), _quantity("44,000"), _quantity("$3.5 million"), _quantity("tall")
        (('length', 2000.0), ('', 44000.0), ('dollars', 3500000.0), None)
        >>> _quantity("2 h 30 min")
        ('time', 9000.0)
    """
    text = _FEET.sub(r" ft \1 in", text.replace(" per ", "/"))
    found = _NUMBER.search(text)
    if found is None or found["minus"] or found["range"] or "below sea" in text:
        return None
    number = float(found["digits"].replace(",", "")) * _SCALES.get(found["scale"], 1.0)
    unit = found["currency"] or found["unit"]
    # Other rates are comparable if they are stated alike.
    dimension, factor = _UNITS.get(unit, (unit if "/" in unit else "", "1"))
    is_square = found["square"] or found["squared"]
    if dimension == "length" and is_square:
        return "area", number * float(factor) ** 2
    number *= float(factor)
    part = _PART.match(text, found.end())
    while part is not None:
        unit = _OF_PARTS.get(f"{dimension} {part['unit']}", part["unit"])
        of, smaller = _UNITS.get(unit, ("", factor))
        if of != dimension or float(smaller) >= float(factor):
            break
        factor = smaller
        number += float(part["digits"]) * float(factor)
        part = _PART.match(text, part.end())
    return dimension, number


def _supported(evidence: Evidence, question: str) -> Evidence:
    """Evidence for the answer to a question, whose supporting sentence is the one that its span
    begins in, without the span.
    """
    start = evidence.start or 0
    sentence = next(span for span in sentence_spans(evidence.text) if start < span[1])
    return replace(evidence, start=None, end=None, supporting=(sentence,), question=question)
