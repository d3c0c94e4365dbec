"""Comparisons of two things: how they are recognised, which values are compared, and what the policy
does where one is missing.
"""

from collections.abc import Mapping, Sequence

import pytest

from rag.answering import AnswerOptions, Outcome, answer_questions
from rag.cli.show import format_answer_set
from rag.comparing import Comparison, find_comparison
from rag.core.types import Answer, AnswerSet, Hit, Passage, SearchResult
from rag.policies import Policy, SearchOnce
from readers.answer_kinds import present_spans
from readers.protocols import Reader, ReadRequest
from tests.support.completing import MadeModel

ANN_OR_BOB = ("Ann Lee", "Bob Ray")


@pytest.mark.parametrize(
    ("question", "template", "wants_most"),
    [
        ("Who was born first, Ann Lee or Bob Ray?", "When was {} born?", False),
        ("who was born later Ann Lee or Bob Ray ?", "When was {} born?", True),
        ("Who is older, Ann Lee or Bob Ray", "When was {} born?", False),
        ("Which singer is the youngest: Ann Lee, or Bob Ray?", "When was {} born?", True),
        ("Which band is older, Ann Lee or Bob Ray?", "When was {} founded or released?", False),
        ("Who died earlier, Ann Lee or Bob Ray?", "When did {} died?", False),
        ("Which film came out first, Ann Lee or Bob Ray?", "When did {} came out?", False),
        ('Which film was released last year or earlier, "Ann Lee" or "Bob Ray"?', "", False),
        ("Which was released most recently, Ann Lee or Bob Ray?", "When was {} released?", True),
        ("Who was born first out of Ann Lee and Bob Ray?", "When was {} born?", False),
        ("Between Ann Lee and Bob Ray, who was born first?", "When was {} born?", False),
        ("Which band, Ann Lee or Bob Ray, was formed earlier?", "When was {} formed?", False),
        ("Was Ann Lee or the great Bob Ray born first?", "When was {} born?", False),
        ("Which is taller, the Ann Lee or the Bob Ray?", "How tall is {}?", True),
        ("Which of the two is the smallest, Ann Lee or Bob Ray?", "How large is {}?", False),
        ("Is Ann Lee or Bob Ray cheaper?", "How expensive is {}?", False),
        (
            "Which has a larger population, Ann Lee or Bob Ray?",
            "What is the population of {}?",
            True,
        ),
    ],
)
def test_a_comparison_is_known_by_its_form(question: str, template: str, wants_most: bool) -> None:
    expected = Comparison(ANN_OR_BOB, template, wants_most) if template else None
    assert find_comparison(question) == expected


@pytest.mark.parametrize(
    "question",
    [
        "Who was the first president?",
        "Who wrote Faust, Goethe or Schiller?",
        "Who was born first, Ann or Bob or Eve?",
        "Are both Ann Lee and Bob Ray taller?",
        "Who lived longer, Ann Lee or Bob Ray?",
        "Which film has the director who died first, Ann Lee or Bob Ray?",
        "Which film has the producer who is older, Ann Lee or Bob Ray?",
        "Which game was attended by more people, Ann Lee or Bob Ray?",
        "Is it more or less expensive than others?",
        "Is Ann Lee more famous than Bob Ray?",
        "What did Ann Lee have more of in 1990 or 1991?",
        "What is the newest presentation or update?",
        "Who died older, Ann Lee or Bob Ray?",
        "Which doesn't cost more, Ann Lee or Bob Ray?",
        "Which has more wins than losses, Ann Lee or Bob Ray?",
        "Which has more wins and fewer losses, Ann Lee or Bob Ray?",
        "Which has the higher version number, Ann Lee or Bob Ray?",
        "Which has a faster startup, Ann Lee or Bob Ray?",
        "Which airport is farther north, Ann Lee or Bob Ray?",
        f"Who was born first, {'Ann or ' * 600}Bob?",
    ],
)
def test_other_questions_are_not_taken_apart(question: str) -> None:
    assert find_comparison(question) is None


@pytest.mark.parametrize(
    ("question", "names", "questions", "wants_most"),
    [
        ("which is larger, a cat or a dog?", ("cat", "dog"), "How large is {}?", True),
        ("who is taller ann lee or bob ray", ("ann lee", "bob ray"), "How tall is {}?", True),
        (
            "which team had less points: the red one or 1860?",
            ("red one", "1860"),
            "How many points did {} have?",
            False,
        ),
        ("which year was warmer, 1998 or 2004", ("1998", "2004"), "How hot is {}?", True),
        ("gzip or xz: which takes longer?", ("gzip", "xz"), "How long does {} take?", True),
        (
            "which takes longer to start, gzip or xz?",
            ("gzip", "xz"),
            "How long does {} take to start?",
            True,
        ),
        ("of gzip and xz, which is faster?", ("gzip", "xz"), "How fast is {}?", True),
        (
            "which one of gzip and xz uses less memory",
            ("gzip", "xz"),
            "How much memory does {} use?",
            False,
        ),
        (
            "did the red lions or the blue bears have the highest win percentage in 2001?",
            ("red lions", "blue bears"),
            "What is the win percentage of {} in 2001?",
            True,
        ),
        ("who was ranked higher, ann or bob?", ("ann", "bob"), "How high did {} ranked?", False),
        ("who had a faster time, ann or bob?", ("ann", "bob"), "What is the time of {}?", False),
        (
            "In XFS, which is larger by default, the block size or the sector size?",
            ("block size", "sector size"),
            "In XFS, how large is {} by default?",
            True,
        ),
        (
            "XFS: is the block or the sector larger?",
            ("block", "sector"),
            "XFS: how large is {}?",
            True,
        ),
    ],
)
def test_things_without_capitals_are_known(
    question: str, names: tuple[str, str], questions: str, wants_most: bool
) -> None:
    comparison = find_comparison(question)
    assert comparison is not None
    assert comparison.names == names
    assert comparison.questions == tuple(map(questions.format, names))
    assert (comparison.wants_most, comparison.asks_yes_no) == (wants_most, False)


@pytest.mark.parametrize(
    ("question", "names", "template", "wants_most"),
    [
        ("Is Ann Lee older than Bob Ray?", ANN_OR_BOB, "When was {} founded or released?", False),
        ("Was Ann Lee born earlier than Bob Ray?", ANN_OR_BOB, "", False),
        (
            "Does Ann Lee have more cats than Bob Ray?",
            ANN_OR_BOB,
            "How many cats does {} have?",
            True,
        ),
        ("is gzip faster than xz", ("gzip", "xz"), "How fast is {}?", True),
        (
            "Does gzip need less memory than xz?",
            ("gzip", "xz"),
            "How much memory does {} need?",
            False,
        ),
        (
            "Are there more cats in Rome than in Ulm?",
            ("Rome", "Ulm"),
            "How many cats are there in {}?",
            True,
        ),
    ],
)
def test_a_comparison_may_ask_for_yes_or_no(
    question: str, names: tuple[str, str], template: str, wants_most: bool
) -> None:
    expected = Comparison(names, template, wants_most, asks_yes_no=True) if template else None
    assert find_comparison(question) == expected


def read_as(question: str, values: Mapping[str, str], confidence: float) -> AnswerSet:
    """A value per name, each from a passage with the name as its title."""
    answers = []
    for name, value in values.items():
        text = f"It is a thing. It has {value}. That is all."
        start = text.index(value)
        request = ReadRequest.of(question, [Passage(name, name, text)])
        span = (start, start + len(value))
        answers.append(Answer(value, 1.0, confidence, request.evidence(0, span)))
    return AnswerSet(question, tuple(answers), 1.0 - confidence, reading={"passages": 2})


@pytest.mark.parametrize(
    ("template", "ann", "bob", "larger"),
    [
        ("When was {} born?", "1 May 1950", "April 30, 1950", "Ann Lee"),
        ("When was {} born?", "the 3rd of May 1950", "May 2 1950", "Ann Lee"),
        ("When was {} born?", "500 BC", "in 1066", None),
        ("When was {} born?", "1950", "May 1950", None),
        ("When was {} born?", "1950", "1950", None),
        ("When was {} born?", "1950", "spring", None),
        ("How tall is {}?", "300 m", "900 feet", "Ann Lee"),
        ("How tall is {}?", "2,717 ft", "1.2 km", "Bob Ray"),
        ("How tall is {}?", "300 m", "300 kg", None),
        # Numbers in two units are one length, or time.
        ("How tall is {}?", "6 ft 9 in", "6 ft 2 in", "Ann Lee"),
        ("How tall is {}?", "6 feet, 2½ inches", "1 m 87 cm", "Ann Lee"),
        ("How tall is {}?", "6 ft. 2 in.", "1.9 m", "Bob Ray"),
        ("How tall is {}?", "6'9\"", "6’ 2″", "Ann Lee"),
        ("How tall is {}?", "6-foot-2", "1.9 m", "Bob Ray"),
        ("How tall is {}?", "6'2 in", "6-foot-1-inch", "Ann Lee"),
        ("How tall is {}?", "6 ft 180 lb", "6 ft (1.83 m)", None),
        ("How tall is {}?", "2 m 3 m", "2 m 4 km", None),
        ("How long is {}?", "2 h 30m", "2 hours and 45 minutes", "Bob Ray"),
        ("How long is {}?", "1 hour 59 minutes 59 seconds", "2 hours", "Bob Ray"),
        ("How heavy is {}?", "7 lb 3 oz", "7 lb", "Ann Lee"),
        ("How large is {}?", "2 square miles", "3 km²", "Ann Lee"),
        ("How large is {}?", "100 hectares", "2 km2", "Bob Ray"),
        ("How large is {}?", "100 hectares", "2 km", None),
        ("How expensive is {}?", "$3.5 million", "900,000 dollars", "Ann Lee"),
        ("How expensive is {}?", "$5", "€4", None),
        ("What is the population of {}?", "1.2 million", "44,000", "Ann Lee"),
        ("What is the share of {}?", "5%", "12 percent", "Bob Ray"),
        ("When was {} founded or released?", "2500 B.C.", "in 1066", None),
        ("When was {} founded or released?", "2600–2500 BC", "in 1066", None),
        ("When was {} founded or released?", "800 years ago", "in 1066", None),
        # What stands behind a year is not of its date.
        ("When was {} born?", "1813 – 13 May 1883", "July 1813", None),
        ("When was {} born?", "1813 and may have died", "March 1813", None),
        ("How long is {}?", "900-1000 m", "10–12 km", None),
        ("How long is {}?", "5km", "5 to 6 m", None),
        ("What is the elevation of {}?", "-430 m", "−86 m", None),
        ("What is the elevation of {}?", "430 m below sea level", "86 m", None),
        ("How fast is {}?", "6 m/s", "20 km/h", "Ann Lee"),
        ("How fast is {}?", "500 mph", "700 kilometres per hour", "Ann Lee"),
        ("How fast is {}?", "300 knots", "340 miles per hour", "Ann Lee"),
        ("How expensive is {}?", "$3.5m", "$3 million", "Ann Lee"),
        ("How expensive is {}?", "$1.5 trillion", "$900bn", "Ann Lee"),
        ("What is the population density of {}?", "1,000/km2", "2,600/sq mi", None),
        ("What is the population density of {}?", "1,700/km2", "19,000/km²", "Bob Ray"),
        ("What is the population of {}?", "1.5 to 2 million", "1,800,000", None),
        ("How large is {}?", "64 KiB", "32768 bytes", "Ann Lee"),
        ("How fast is {}?", "2.4 GHz", "800 MHz", None),
        ("What is the clock rate of {}?", "2.4 GHz", "800 MHz", "Ann Lee"),
        ("How long is {}?", "1:02:03", "59:59.5", "Ann Lee"),
        # Of two times the shorter one is faster, and a bare number may be either.
        ("How fast is {}?", "1:43.72", "52.17 s", "Bob Ray"),
        ("How fast is {}?", "43.72", "52.17", None),
        ("How long did {} serve?", "1998", "2004", None),
        ("How many prizes did {} win?", "4th", "2nd", None),
        ("What is the rank of {}?", "4th", "2nd", "Ann Lee"),
        # A decade is no year, and these are no numbers that everyone reads alike.
        ("When was {} founded or released?", "the 1880s", "1885", None),
        ("How long is {}?", "1,5 km", "3 km", None),
        ("What is the population of {}?", "1.024.000", "44.000", None),
        ("What is the release of {}?", "1.10.2", "1.9", None),
        ("What is the population of {}?", "1,23,456", "99,000", "Ann Lee"),
        ("What is the population of {}?", "1,234,567", "2,345,678.5", "Bob Ray"),
        ("How long is {}?", "1/2 inch", "3/8 inch", None),
        ("What is the sum of {}?", "2×10^6", "3×10^5", None),
        ("How hot is {}?", "minus 5 °C", "3 °C", None),
        ("How hot is {}?", "200 °C", "350 °F", None),
        ("How hot is {}?", "20 degrees Celsius", "19 °C", "Ann Lee"),
        ("How much power does {} use?", "between 2 and 4 kW", "3 kW", None),
        ("How much power does {} use?", "800 W", "2 kW", "Bob Ray"),
        ("How expensive is {}?", "$5 per month", "$50 per year", None),
        ("How expensive is {}?", "$5 a month", "$6/month", "Bob Ray"),
        ("How expensive is {}?", "$5 monthly", "$50", None),
        ("How expensive is {}?", "5 USD", "4 EUR", None),
        ("How many users does {} have?", "5k", "800", "Ann Lee"),
        ("How many users does {} have?", "1.5B", "900 million", "Ann Lee"),
        ("How many users does {} have?", "5 crore", "80 lakh", "Ann Lee"),
        ("How long does {} take?", "3 mins", "2 hrs", "Bob Ray"),
        ("How long does {} take?", "900 µs", "2 ms", "Bob Ray"),
        ("How large is {}?", "3 gallons", "10 litres", None),
        ("How large is {}?", "8 Gb", "2 GB", None),
        ("How fast is {}?", "100 Mb/s", "50 MB/s", None),
        ("How fast is {}?", "100 Mbps", "1 Gbit/s", "Bob Ray"),
    ],
)
def test_values_are_compared_in_their_units(
    template: str, ann: str, bob: str, larger: str | None
) -> None:
    for wants_most in (True, False):
        comparison = Comparison(ANN_OR_BOB, template, wants_most)
        read = []
        for name, value in zip(ANN_OR_BOB, (ann, bob), strict=True):
            read.append(read_as(template.format(name), {name: value}, 0.8))
        decided = comparison.decide("Ann Lee or Bob Ray?", read)
        if larger is None:
            assert decided is None
        else:
            assert decided is not None
            assert (decided.answers[0].text == larger) == wants_most


TABLE = (
    "Nation: India (IND); Gold: 8; Total: 25\nNation: Kuwait (KUW); Gold: 4; Total: 30\n"
    "Nation: Oman; Gold: 8; Total: 8"
)


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        ("8", "4", "India (IND)"),
        # The cell of another row, or column.
        ("25", "8; Total: 8", None),
        ("8", "30", None),
        ("8", "8", None),
    ],
)
def test_values_of_tables_are_of_the_rows_that_name_the_things(
    first: str, second: str, winner: str | None
) -> None:
    request = ReadRequest.of("", [Passage("t", "Games", TABLE)])
    read = []
    for value in (first, second):
        start = TABLE.index(f": {value}") + 2
        evidence = request.evidence(0, (start, start + len(value)))
        read.append(AnswerSet("", (Answer(value, 1.0, 0.8, evidence),), 0.2))
    template = "How many gold medals does {} have?"
    decided = Comparison(("india", "kuwait"), template, wants_most=True).decide("", read)
    assert (decided and decided.text) == winner
    # The name of a column may be part of the name.
    names = ("India (IND) nation", "Kuwait (KUW) nation")
    decided = Comparison(names, template, wants_most=True).decide("", read)
    assert (decided and decided.text) == (winner and names[0])


def test_yes_or_no_is_presented_where_a_comparison_decides() -> None:
    question = "Is Ann Lee taller than Bob Ray?"
    comparison = find_comparison(question)
    assert comparison is not None
    for heights, expected in ((("2 m", "1 m"), "Yes"), (("1 m", "2 m"), "No")):
        read = []
        for asked, name, height in zip(comparison.questions, ANN_OR_BOB, heights, strict=True):
            read.append(read_as(asked, {name: height}, 0.8))
        decided = comparison.decide(question, read)
        assert decided is not None
        presented = present_spans(decided, 5)
        assert (presented.text, presented.kind, presented.certainty) == (
            expected,
            "answer",
            "likely",
        )
        assert [step.title for step in presented.answers[0].path] == list(ANN_OR_BOB)


def test_signs_before_a_span_count_and_numbers_behind_it_do_not() -> None:
    template = "What is the size of {}?"
    comparison = Comparison(ANN_OR_BOB, template, wants_most=True)
    small = read_as(template.format("Ann Lee"), {"Ann Lee": "44,000"}, 0.8)
    texts = {"Bob Ray has −50,000": "50,000", "Bob Ray has two (in 2010)": "two"}
    for text, value in {**texts, "Bob Ray has c.50,000": "50,000"}.items():
        request = ReadRequest.of("", [Passage("Bob Ray", "Bob Ray", text)])
        start = text.index(value)
        evidence = request.evidence(0, (start, start + len(value)))
        other = AnswerSet("", (Answer(value, 1.0, 0.8, evidence),), 0.2)
        decided = comparison.decide("", [small, other])
        assert (decided is None) == (text in texts)


def test_a_decision_shows_both_values_and_their_confidence() -> None:
    comparison = Comparison(ANN_OR_BOB, "When was {} born?", wants_most=False)
    read = [
        read_as("When was Ann Lee born?", {"Ann Lee": "1950"}, 0.8),
        # The best answer is about someone else.
        read_as("When was Bob Ray born?", {"Eve": "1930", "Bob Ray": "1940"}, 0.5),
    ]
    decided = comparison.decide("Who was born first?", read)
    assert decided is not None
    [answer] = decided.answers
    assert (answer.text, answer.evidence.title) == ("Bob Ray", "Bob Ray")
    assert answer.confidence == pytest.approx((1 + 0.8 * 0.5) / 2)
    assert (decided.question, decided.no_answer_confidence) == ("Who was born first?", 0.5)
    assert decided.reading == {"passages": 4}
    shown = [[step.text[a:b] for a, b in step.supporting] for step in answer.path]
    assert shown == [["It has 1950."], ["It has 1940."]]
    # They are no hops: nobody goes from the first to the second.
    told = format_answer_set(decided.to_json(), colour=False)
    assert "When was Ann Lee born? Ann Lee  It has 1950." in told
    assert "When was Bob Ray born? Bob Ray  It has 1940." in told
    assert "hop" not in told
    assert comparison.decide("Who was born first?", [read[0], AnswerSet("", (), 1.0)]) is None


BORN = {"Ann Lee": "Ann Lee was born in 1950.", "Bob Ray": "Bob Ray was born in 1940."}
ASKED = "Who was born first, Ann Lee or Bob Ray?"


class Births(Reader):
    """Finds the passages of whom a query names, and reads the year of the first one named."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.searched = list[str]()
        self.read_for = list[tuple[str, list[str]]]()

    def search(self, queries: Sequence[str], top_k: int, timer: object) -> list[SearchResult]:
        self.searched += queries
        return [SearchResult(query, self.ranked(query)) for query in queries]

    def ranked(self, query: str) -> list[tuple[Hit, Passage]]:
        names = [name for name in self.texts if name in query]
        return [(Hit(0, name, 1.0), Passage(name, name, self.texts[name])) for name in names]

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        results = []
        for request in requests:
            passages = request.passages
            self.read_for.append((request.question, [passage.id for passage in passages]))
            number = next(n for n, passage in enumerate(passages) if passage.id in request.question)
            start = passages[number].text.index("in ") + 3
            evidence = request.evidence(number, (start, start + 4))
            year = passages[number].text[start : start + 4]
            results.append(AnswerSet(request.question, (Answer(year, 1.0, 0.9, evidence),), 0.1))
        return results


def ask(reader: Births, policy: Policy | None = None, **options: object) -> Outcome:
    made = AnswerOptions(policy=policy)
    [outcome] = answer_questions(
        [ASKED],
        made,
        search=reader.search,
        reader=reader,
        **options,  # type: ignore[arg-type]
    )
    return outcome


def test_each_thing_is_searched_and_read_for() -> None:
    reader = Births(BORN)
    outcome = ask(reader)
    ann, bob = "When was Ann Lee born?", "When was Bob Ray born?"
    assert reader.searched == [ASKED, ann, bob]
    assert reader.read_for == [(ann, ["Ann Lee", "Bob Ray"]), (bob, ["Bob Ray", "Ann Lee"])]
    assert outcome.presented is not None
    assert outcome.short is not None
    assert outcome.presented.answers[0].text == outcome.short.answers[0].text == "Bob Ray"
    answer = outcome.presented.answers[0]
    assert answer.evidence.text[answer.evidence.start : answer.evidence.end] == "Bob Ray"
    assert {passage.id for _, passage in outcome.result.passages} == set(BORN)


def test_without_a_decision_the_question_is_read_as_any_other() -> None:
    reader = Births(BORN | {"Bob Ray": "Bob Ray was born in 1950."})
    outcome = ask(reader)
    assert reader.read_for[2:] == [(ASKED, ["Ann Lee", "Bob Ray"])]
    assert outcome.presented is not None
    assert (outcome.presented.question, outcome.presented.answers[0].text) == (ASKED, "1950")


def test_gold_passages_are_read_for_both() -> None:
    reader = Births(BORN)
    given = [SearchResult(ASKED, reader.ranked(ASKED))]
    outcome = ask(reader, first_results=given)
    assert reader.searched == []
    assert outcome.presented is not None
    assert outcome.presented.answers[0].text == "Bob Ray"


def test_paths_other_languages_and_language_models_are_left_as_they_are() -> None:
    class Paths(Births):
        def search(self, queries: Sequence[str], top_k: int, timer: object) -> list[SearchResult]:
            found = super().search(queries, top_k, timer)
            return [SearchResult(r.query, r.passages, [r.passages]) for r in found]

    modelled = Births(BORN)
    modelled.completer = MadeModel(lambda content: pytest.fail(content))
    german = SearchOnce("de")
    for reader, policy in (
        (Paths(BORN), None),
        (Births(BORN), german),
        (modelled, SearchOnce.of(modelled)),
    ):
        ask(reader, policy)
        assert [question for question, _ in reader.read_for] == [ASKED]
