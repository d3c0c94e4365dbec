"""The web page in a real browser."""

from typing import Any

import pytest

from rag.core.types import Answer, AnswerSet, Evidence, JudgedSentence
from tests.api.fakes import (
    BEARING,
    COMPARED,
    EVIL,
    PASSAGES,
    PROMISED,
    PROMISED_CLAIM,
    FakePipeline,
    serving,
)

QUESTION = "Where does the Danube rise?"


def test_ask_and_see_the_answer_with_its_evidence(page):
    page.until(lambda: page.all("#examples button"))  # the server's settings arrive after the page
    assert page.texts("#examples button")[0] == QUESTION
    assert "Answers from 4 passages" in page.text("#tagline")
    assert not page.is_visible("#upload")  # there are no keys
    page.ask(QUESTION)
    assert page.text(".answer") == "the Black Forest"
    assert page.text(".words") == "93 % sure, almost certain"
    assert page.all(".bar")[0].get_attribute("aria-valuenow") == "93"
    share = page.script(
        "const fill = document.querySelector('.fill');"
        "return fill.getBoundingClientRect().width / fill.parentElement.getBoundingClientRect().width"
    )
    assert share == pytest.approx(0.93, abs=0.02)
    assert page.texts("mark.best") == ["the Black Forest"]
    assert page.texts("mark.other") == ["Donaueschingen", "the Swiss Alps"]
    assert page.texts(".card h3") == ["Danube", "Rhine"]
    assert page.text(".panel cite") == "Danube"
    assert page.texts(".alternatives button") == ["Donaueschingen", "the Swiss Alps"]
    for part in ("index 3f9c2a71", "search 1.3 ms", "read 21 ms"):
        assert part in page.text("#timings")
    assert "the Black Forest" in page.text("#status")
    assert page.complaints() == []


def test_other_kinds_of_answers_are_shown_as_what_they_are(page):
    page.ask(BEARING)
    sentence = "The Rhine begins in the Swiss Alps and flows north to the North Sea."
    assert page.text(".panel .eyebrow") == "The passage that bears on it"
    assert page.texts(".bearing") == page.texts("mark.best") == [sentence]
    assert "which the reader cannot tell" in page.text(".panel")
    assert page.all(".alternatives") == page.all(".answer") == []
    page.ask("Does the Danube cross borders?")
    assert (page.text(".answer"), page.texts(".card h3")) == ("yes, ten", ["Danube"])
    assert page.all("mark") == []
    assert "answer worded by the model" in page.text(".panel")
    page.ask(QUESTION)
    assert "worded by the model" not in page.text(".panel")
    assert page.complaints() == []


class Citing(FakePipeline):
    """Answers in two sentences that cite, by a third passage too, and guesses in Hebrew."""

    def _answer(self, question: str, n_best: int) -> AnswerSet:
        rhine, danube, emoji = [Evidence.of(PASSAGES[number], 1.0) for number in (1, 0, 2)]
        if question == "שלום":
            guess = Answer("נהר 2850", 0.0, 0.03, rhine)
            return AnswerSet(question, (guess,), 0.9, "v1", {"total": 1.0})
        sentences = (
            JudgedSentence("It rises there.", ("danube-1", "rhine-1")),
            JudgedSentence("It is long.", ("rhine-1",)),
        )
        text = " ".join(sentence.text for sentence in sentences) + " So it is." * 12
        cited = {"citations": (rhine, danube), "sentences": sentences, "note": "it is doubted"}
        answer = Answer(text, 0.0, 0.6, danube, **cited)
        other = Answer("short", 0.0, 0.1, emoji)
        return AnswerSet(question, (answer, other), 0.4, "v1", {"total": 1.0})


def test_an_answer_leads_to_the_passages_that_it_cites(page_at: Any) -> None:
    with serving(Citing()) as url:
        page = page_at(url).open()
        page.ask("Where?")
        said = page.text(".answer").split()
        assert " ".join(said) == "It rises there. [2][1] It is long. [1]"
        assert page.texts(".card h3") == ["[1] Rhine", "[2] Danube", "Emoji 😀"]
        assert page.text(".note") == "Beware: it is doubted."
        page.all(".cited")[0].click()
        assert page.script("return document.activeElement.dataset.passage") == "danube-1"
        size = "return parseFloat(getComputedStyle(document.querySelector('.answer')).fontSize)"
        assert page.script(size) < 20
        page.ask("שלום")
        # Else the share behind it would stand before it.
        bidi = "return getComputedStyle(document.querySelector('.guess')).unicodeBidi"
        assert page.script(bidi) == "isolate"
        assert page.complaints() == []


def test_claims_are_verified_on_a_tab_of_their_own(page):
    page.all("#tab-verify")[0].click()
    assert page.text("#send") == "Verify"
    assert not page.is_visible("#examples")
    page.ask("The Danube rises in the Black Forest of Germany. However, it is long.")
    assert page.texts(".verdict .eyebrow") == ["Supported", "Not judged"]
    assert "% sure, likely (refuted" in page.texts(".verdict .words")[0]
    assert "hangs on the one before it" in page.texts(".verdict .fine")[0]
    assert page.texts(".evidence > .card h3") == ["Danube"]
    assert page.texts(".evidence > .card mark.support")[0].startswith("The Danube rises")
    assert len(page.texts("details .card")) == 3
    assert "judge 8.5 ms" in page.text("#timings")
    assert page.text("#status").startswith("Supported: The Danube")
    address = page.script("return location.search")
    assert address.startswith("?verify=The%20Danube")
    page.open(f"/{address}")
    page.settled()
    assert page.texts(".verdict .eyebrow") == ["Supported", "Not judged"]
    page.all("#tab-ask")[0].click()
    page.ask(QUESTION)
    assert page.text(".answer") == "the Black Forest"
    assert page.complaints() == []
    place = page.driver.current_url
    page.ask("The Danube is a river. " * 300)  # no server loads an address of this length
    assert page.driver.current_url == place


def test_both_values_of_a_comparison_are_shown_and_are_no_hops(page):
    page.ask(COMPARED)
    assert page.texts(".path li > p") == ["How long is the Rhine?", "How long is the Danube?"]
    label = "return getComputedStyle(arguments[0], '::before').content"
    assert page.script(label, page.all(".path h3")[0]) == "none"
    page.ask("Where rises what is longer than the Rhine?")
    assert page.texts(".path li > p") == []
    assert "Hop" in page.script(label, page.all(".path h3")[0])


def test_a_path_is_shown_hop_by_hop_with_its_sentences_lit(page):
    page.ask("Where rises what is longer than the Rhine?")
    assert page.texts(".path h3") == ["Rhine", "Danube"]
    first, second = page.all(".path .card")
    assert [mark.text for mark in first.find_elements("css selector", "mark.support")] == [
        "The Rhine begins in the Swiss Alps and flows north to the North Sea."
    ]
    assert [mark.text.strip() for mark in second.find_elements("css selector", "mark")] == [
        "The Danube rises in",
        "the Black Forest",
        "of Germany, where two small rivers meet at Donaueschingen.",
    ]
    assert len(page.texts(".card")) == 2  # not once more as evidence
    assert page.complaints() == []


def test_highlights_are_right_beyond_the_basic_plane(page):
    page.ask("Which word follows the letters?")
    assert page.texts("mark") == ["mañana", "𝄞 the clef"]
    assert page.texts(".card .passage")[0].startswith(
        "A 😀 grinning face, a 👩‍🔬 scientist and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 letters"
    )
    cases = page.script(
        """
        return import("/static/text.js").then(({ splitBySpans, percent }) => {
          const cut = (text, ...pairs) => splitBySpans(text, pairs.map(([start, end]) => ({ start, end })))
            .map((part) => (part.span ? `[${part.text}]` : part.text)).join("");
          return [
            cut("a😀b", [1, 2]), cut("😀😀", [1, 2]), cut("abc", [0, 3]), cut("abc", [2, 9]),
            cut("abc", [-1, 2]), cut("abc", [2, 2]), cut("abcdef", [2, 4], [3, 5], [0, 1], [4, 6]),
            cut("", [0, 1]), cut("e\\u0301x", [0, 2]),
            percent(0.001), percent(0.5), percent(0.999), percent(0),
          ];
        });
        """
    )
    assert cases == [
        "a[😀]b",
        "😀[😀]",
        "[abc]",
        "abc",
        "abc",
        "abc",
        "[a]b[cd][ef]",
        "",
        "[e\u0301]x",
        "under 1 %",
        "50 %",
        "over 99 %",
        "under 1 %",
    ]


def test_markup_in_questions_passages_and_titles_is_inert(page):
    page.ask("What must stay text?")
    assert page.text(".answer") == EVIL
    assert page.texts("mark.best") == [EVIL]
    assert EVIL in page.text(".card h3")
    page.ask(EVIL)
    page.ask(QUESTION)
    assert page.texts("#recent button") == [EVIL, "What must stay text?"]
    assert page.all("#results img, #results script, #recent img, #recent script") == []
    assert "owned" not in page.driver.title
    page.open(f"/?q={'%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E'}")
    page.settled()
    assert page.all("#results img") == []
    assert page.complaints() == []


def test_no_answer_is_said_honestly_and_the_best_passages_are_shown(page):
    page.ask("Who invented the telephone?")
    assert page.text("#results h2.answer") == "No answer found"
    assert "88 % sure" in page.text(".no-answer")
    assert page.text(".guess") == "the western edge"
    assert page.texts(".card h3") == ["Rhine"]
    assert page.all("mark.best, .bar") == []
    assert page.text("#status") == "No answer found"
    page.ask("Is there anything at all?")
    assert page.text("#results h2.answer") == "No answer found"
    assert len(page.all(".card")) == 4
    assert page.all("mark, .guess") == []


def test_a_promise_is_told_and_withholds_what_is_not_sure_enough(page):
    told = "Promised: at most 10 % of the given answers are wrong and at most 20 % of questions"
    given, withheld = PROMISED
    page.ask(given)
    assert page.text("#results .answer") == "two small rivers"
    assert page.text(".promise").startswith(told)
    page.ask(withheld)
    assert "No answer is sure enough for what is promised." in page.text(".no-answer")
    assert page.text(".promise").endswith("(95 % sure, 61 % of 150 questions answered).")
    assert page.text(".guess") == "two small rivers"
    page.all("#tab-verify")[0].click()
    page.ask(PROMISED_CLAIM)
    assert page.text(".promise").startswith("Promised: at most 10 % of the given verdicts")


def test_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    page.script("document.activeElement.blur()")
    page.press("/")
    assert page.focused == "question"
    page.press("Where does the ", "/", Keys.BACKSPACE, "Danube rise?", Keys.ENTER)
    page.settled()
    assert page.text(".answer") == "the Black Forest"
    for _ in ("button", "folders", "first hit"):
        page.press(Keys.TAB)
    outline = page.script(
        "const style = getComputedStyle(document.activeElement);"
        "return [document.activeElement.textContent, style.outlineStyle, style.outlineWidth]"
    )
    assert outline == ["Donaueschingen", "solid", "3px"]
    page.press(Keys.TAB, Keys.ENTER)
    assert page.script("return document.activeElement.dataset.passage") == "rhine-1"
    page.press(Keys.ESCAPE)
    assert page.focused == "question"
    assert page.script("return document.getElementById('question').value") == ""
    assert page.all("#results > *") == []
    assert page.is_visible("#examples")
    page.press(Keys.ENTER)
    assert page.text("#status") == "Type a question first"


def test_share_link_history_and_examples(page):
    page.open("/?q=Where%20does%20the%20Danube%20rise%3F")
    page.settled()
    assert page.text(".answer") == "the Black Forest"
    assert page.script("return document.getElementById('question').value") == QUESTION
    assert page.driver.title == f"{QUESTION} – Ask the corpus"
    page.ask("Which word follows the letters?")
    assert page.driver.current_url.endswith("/?q=Which%20word%20follows%20the%20letters%3F")
    page.driver.back()
    page.until(lambda: page.text(".answer") == "the Black Forest")
    page.open("/")
    page.until(lambda: page.is_visible("#examples"))
    page.all("#examples button")[2].click()
    page.settled()
    assert page.text(".answer") == "mañana"
    kept = page.script("return [localStorage.length, sessionStorage.length, document.cookie]")
    assert kept == [0, 0, ""]


def test_what_to_do_is_chosen_by_buttons_that_say_which_is_pressed(page):
    # Tabs would have to be walked through with arrows, and panels to belong to them.
    assert page.all("[role=tab], [role=tablist]") == []
    pressed = "return document.querySelector('[aria-pressed=true]').id"
    assert page.script(pressed) == "tab-ask"
    page.all("#tab-verify")[0].click()
    assert page.script(pressed) == "tab-verify"
    assert len(page.all("[aria-pressed=true]")) == 1


def test_a_question_that_is_asked_again_is_in_the_history_once(page):
    page.ask("What's the Danube?")
    before = page.script("return history.length")
    page.ask("What's the Danube?")
    assert page.script("return history.length") == before


def test_the_page_speaks_the_language_of_the_browser(page):
    page.speak("de-AT")
    try:
        page.open().until(lambda: "4 Textstellen" in page.text("#tagline"))
        assert page.script("return document.documentElement.lang") == "de"
        assert (page.text("#send"), page.driver.title) == ("Fragen", "Den Korpus fragen")
        page.ask(QUESTION)
        assert page.text(".panel .eyebrow") == "Antwort"
        assert page.text(".words") == "zu 93 % sicher, so gut wie gewiss"
        assert page.text(".card .head .fine").startswith("Suchwert 3,000")
        page.ask(PROMISED[1])
        assert page.text(".promise").startswith("Versprochen: höchstens 10 % der gegebenen")
        told = page.script(
            "const { promiseInWords } = await import('/static/text.js');"
            "return promiseInWords({ max_error: 0.025, confidence: 0.95, coverage: 0.6, n: 9 }, 'answers');"
        )
        assert "2,5 %" in told
        page.all("#tab-verify")[0].click()
        page.ask("The Danube rises in the Black Forest of Germany. However, it is long.")
        assert page.texts(".verdict .eyebrow") == ["Belegt", "Nicht beurteilt"]
        page.speak("fr")
        page.open().until(lambda: "4 passages" in page.text("#tagline"))
        assert page.complaints() == []
    finally:
        page.speak("en-US")


def test_errors_are_shown_with_a_way_out(page_at):
    broken = FakePipeline(poison=["bad"])
    with serving(broken) as address:
        own = page_at(address).open()
        own.ask("bad")
        assert own.text(".error h2") == "The server failed to answer this request"
        assert own.text(".error .fine").startswith("Request ")
        assert "Error" in own.text("#status")
        broken.poison.clear()
        own.all(".error button")[0].click()
        own.until(lambda: own.all(".card"))
        own.ask("far too long a question for this server " * 30)
        assert "at most 1000" in own.text(".error h2")
        own.script("document.getElementById('question').value = 'again'")
    own.ask("gone")
    assert own.text(".error h2") == "The server cannot be reached"
