"""Replies of language models become answers that can be checked, or errors."""

import math

import pytest

from rag.core.types import Passage
from readers.llm.prompt import (
    Completion,
    MalformedReply,
    Reply,
    grounded_messages,
    parse_reply,
    quoting_messages,
    to_result,
    without_question,
)

PASSAGES = [
    Passage("p1", "Rhine", "The Rhine ends in the North Sea."),
    Passage("p2", "Danube", "The Danube rises in the Black  Forest of Germany."),
]


def test_passages_are_numbered_from_one_and_the_question_comes_last() -> None:
    text = grounded_messages("Where does the Danube rise?", PASSAGES)[-1]["content"]
    assert text.index("[1] Rhine: The Rhine") < text.index("[2] Danube:") < text.index("Question: Where")


def test_who_need_not_cite_is_shown_no_numbers() -> None:
    system, user = quoting_messages("Where does it rise?", PASSAGES)
    assert "JSON" not in system["content"]
    assert user["content"] == (
        "Rhine: The Rhine ends in the North Sea.\n\nDanube: The Danube rises in the Black  Forest of Germany."
        "\n\nQuestion: Where does it rise?"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"answer": "1990", "passages": [1, 2, 1]}', Reply("1990", (1, 2))),
        ('<think>{maybe}</think>\n```json\n{"passages": ["[2]"], "answer": " x "}\n```', Reply("x", (2,))),
        ('{"answer": 8849, "passages": 2}', Reply("8849", (2,))),
        ('{"answer": true, "passages": [1]}', Reply("yes", (1,))),
        ('{"answer": "Not in the passages.", "passages": []}', Reply("", ())),
        ('{"answer": null}', Reply("", ())),
        ('{"answer": ["Ulm", "Linz"], "passages": [1]}', Reply("Ulm, Linz", (1,))),
        ("The Black Forest.", Reply("The Black Forest", ())),
        ("Answer: the **Rhine**.", Reply("the Rhine", ())),
        (
            "It rises in the Black Forest [2], as passage 1 says [1, 2].",
            Reply("It rises in the Black Forest, as passage 1 says", (2, 1)),
        ),
        ("```\nthe Rhine\n```", Reply("the Rhine", ())),
        ('<think>{"answer": "a draft"}</think>{"answer": "x"}', Reply("x", ())),
        ("I don't know.", Reply("", ())),
        ("I\u2019m sorry, but I cannot find the answer in the passages.", Reply("", ())),
        ('{"answer": "The passages do not mention it.", "passages": [1]}', Reply("", (1,))),
        ("Not mentioned in the passages.", Reply("", ())),
        ("Washington, D.C.", Reply("Washington, D.C.", ())),
        ('The answer is: "Dorothy Hodgkin"', Reply("Dorothy Hodgkin", ())),
        ("The answer is Dorothy Hodgkin.", Reply("Dorothy Hodgkin", ())),
        ('Answer: "Dorothy Hodgkin" (passage 2).', Reply("Dorothy Hodgkin", (2,))),
        ("The answer is not in passage 1.", Reply("", (1,))),
        ('"answer": "Dorothy Hodgkin"', Reply("Dorothy Hodgkin", ())),
        ("1. Spain\n2. France [2]", Reply("Spain", ())),
        ('1. The answer is: "vegetable"\n2. The answer is: "fruit"', Reply("vegetable", ())),
        ("- The **Rhine** [1]", Reply("The Rhine", (1,))),
        ("[2] The Rhine\n[3] The Elbe", Reply("The Rhine", (2,))),
        ("1.5 million", Reply("1.5 million", ())),
        ('{"answer": "the \\"Rhine\\"", "passages": [2', Reply('the "Rhine"', (2,))),
    ],
)
def test_replies_are_understood(text: str, expected: Reply) -> None:
    assert parse_reply(text) == expected


@pytest.mark.parametrize(
    ("answer", "question", "left"),
    [
        (
            "The largest number of immigrants to the United States from Latin America is Mexico",
            "which country in latin america sends the largest number of immigrants to the united states",
            "Mexico",
        ),
        ('The song "Love Is in the Air" is by Young', "who wrote the song love is in the air", "Young"),
        ("The term for webbed toes was “syndactyly”", "what is the term for webbed toes", "syndactyly"),
        ("It is 1,945 metres", "how high is it", "1,945 metres"),
        ("The Alps are high", "which river is long", "The Alps are high"),
        ("Isis", "which goddess", "Isis"),
        ("The capital is", "what is the capital", "The capital is"),
    ],
)
def test_a_beginning_that_repeats_the_question_is_left_out(answer: str, question: str, left: str) -> None:
    assert without_question(answer, question) == left


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think>so",
        "[3 of",
        '["x"]',
        '{"answer": ',
        'Yes: {"answer": "cut o',
        '{"reply": "x"}',
        '{"answer": [["x"]]}',
        '{"answer": ' + "[" * 3000,
        '{"answer": ' + "1" * 5000 + "}",
    ],
)
def test_other_replies_are_malformed(text: str) -> None:
    with pytest.raises(MalformedReply):
        parse_reply(text)


def test_the_span_is_looked_for_in_the_named_passage_and_quoted_as_it_stands() -> None:
    completion = Completion("", (("a", math.log(0.5)), ("b", math.log(0.5))))
    result = to_result(Reply("black forest", (2,)), completion, PASSAGES)
    answer = result.answers[0]
    assert (answer.passage_index, answer.text, answer.confidence) == (1, "Black  Forest", pytest.approx(0.25))
    assert PASSAGES[1].text[answer.start : answer.end] == answer.text


def test_an_answer_that_stands_nowhere_has_the_named_passage_without_a_span() -> None:
    answer = to_result(Reply("yes", (2,)), Completion(""), PASSAGES).answers[0]
    assert (answer.text, answer.passage_index, answer.start, answer.confidence) == ("yes", 1, None, 0.5)


def test_yes_and_no_are_no_quotations() -> None:
    passages = [Passage("a", "", "There is no bridge."), Passage("b", "", "The river is short.")]
    answer = to_result(Reply("no", (2,)), Completion(""), passages).answers[0]
    assert (answer.passage_index, answer.start) == (1, None)
    assert to_result(Reply("no", ()), Completion(""), passages).answers == ()


def test_a_wrong_number_is_mended_by_the_text_and_said() -> None:
    answer = to_result(Reply("North Sea", (7,)), Completion(""), PASSAGES).answers[0]
    assert (answer.passage_index, answer.is_supported) == (0, True)
    assert answer.note == (
        "it cites passage 7, but was shown 2; it stands in a passage that it does not cite"
    )
    answer = to_result(Reply("North Sea", (2,)), Completion(""), PASSAGES).answers[0]
    assert (answer.passage_index, answer.note) == (0, "it stands in a passage that it does not cite")
    nothing = to_result(Reply("Paris", (7,)), Completion(""), PASSAGES)
    assert (nothing.answers, nothing.no_answer_confidence) == ((), 1.0)


def test_an_invented_answer_is_marked_and_doubted() -> None:
    result = to_result(Reply("Paris", (2,)), Completion(""), PASSAGES)
    [answer] = result.answers
    assert (answer.is_supported, answer.note) == (False, "the passages that it cites do not say it")
    assert answer.confidence == 0.1
    assert result.no_answer_confidence > answer.confidence


def test_an_answer_in_other_words_is_supported_by_its_words() -> None:
    reply = Reply("In Germany, in the Black Forest it rises", (2,))
    result = to_result(reply, Completion(""), PASSAGES)
    [answer] = result.answers
    assert (answer.passage_index, answer.start, answer.is_supported, answer.note) == (1, None, True, "")
    assert result.no_answer_confidence == 0.0


def test_a_sentence_that_cites_nothing_has_the_passage_of_its_words() -> None:
    [answer] = to_result(
        Reply("In Germany, in the Black Forest it rises", ()), Completion(""), PASSAGES
    ).answers
    assert (answer.passage_index, answer.start, answer.citations, answer.is_supported) == (1, None, (), True)
    assert answer.note == "its words stand in a passage that it does not cite"
    for other in ("It ends in the Pacific near Lima", "It is", "yes"):
        assert to_result(Reply(other, ()), Completion(""), PASSAGES).answers == ()


def test_every_citation_is_kept_with_its_place() -> None:
    passages = [*PASSAGES, Passage("p3", "", "Springs of the black forest feed the Danube.")]
    [answer] = to_result(Reply("Black Forest", (1, 3, 2)), Completion(""), passages).answers
    assert answer.passage_index == 2
    quoted = [
        None if cited.start is None else passages[cited.passage_index].text[cited.start : cited.end]
        for cited in answer.citations
    ]
    assert quoted == [None, "black forest", "Black  Forest"]


def test_an_odd_character_or_number_costs_nothing() -> None:
    assert parse_reply('{"answer": "Oslo\\ud83d", "passages": [1, 123456]}') == Reply("Oslo?", (1,))
    assert parse_reply("Oslo\ud83d [2]").answer == "Oslo?"
