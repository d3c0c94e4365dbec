"""Chat completions, through OpenAI's own client where it can be."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from rag.core.errors import ReaderError
from rag.core.types import Answer, AnswerSet, Evidence, Location
from tests.api.fakes import (
    ADMIN,
    BEARING,
    KEY,
    PROMISED,
    FakePipeline,
    posted,
    refused,
    running,
    serving,
)

QUESTION = "Where does the Danube rise?"
MODEL = "openqa-rag"


class ThreeCitations(FakePipeline):
    """One answer that cites two passages, of a PDF and of the web, and rests on a third."""

    def _answer(self, question: str, n_best: int) -> AnswerSet:
        places = (
            Location("a/rivers.pdf", "[12]"),
            Location("https://example.org/a b"),
            None,
            Location("talk.pptx", "3"),
        )
        cited = [
            Evidence(f"p{n}", f"Title [{n}]", "Text.", None, None, 1.0, location=place)
            for n, place in enumerate(places, start=1)
        ]
        shown = (cited[0], cited[1], cited[3])
        note = "the passages that it cites do not say it"
        answer = Answer("ten", 0.0, 0.6, cited[2], citations=shown, is_supported=False, note=note)
        return AnswerSet(question, (answer,), 0.4, self.index_version, {"total": 1.0})


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with serving(api_keys=ADMIN) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="admin", max_retries=0)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def complete(client: openai.OpenAI, *messages: dict[str, Any], **values: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": list(messages), **values})


def said(client: openai.OpenAI, question: str) -> str:
    """The text of the reply to a question."""
    content: str = complete(client, user(question)).choices[0].message.content
    return content


def streamed(chunks: Any) -> str:
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)


def test_an_answer_with_its_sources(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    reply = complete(
        client, {"role": "system", "content": "Be brief."}, user(QUESTION), temperature=0.2
    )
    link = f"{client.base_url}passages/danube-1"
    content = reply.choices[0].message.content
    assert content == "the Black Forest [1]\n\n[1] Danube"  # a link cannot send the key
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens == 9
    proxied = complete(client, user(QUESTION), extra_headers={"X-Forwarded-Prefix": "/qa"})
    assert "/qa/v1/passages/danube-1" in proxied.sources[0]["link"]
    assert reply.usage.total_tokens == 9 + reply.usage.completion_tokens
    (source,) = reply.sources
    assert source["text"][source["start"] : source["end"]] == "the Black Forest"
    assert (source["number"], source["link"], reply.confidence) == (1, link, 0.93)


def test_a_stream_has_the_same_text_and_sources(client: openai.OpenAI) -> None:
    whole = complete(client, user(QUESTION))
    chunks = list(
        complete(client, user(QUESTION), stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert streamed(chunks) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].sources == whole.sources
    assert chunks[-1].usage == whole.usage
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk.usage is None for chunk in complete(client, user(QUESTION), stream=True))


class Speaking(FakePipeline):
    """Says the beginning of an answer, and the end when it may; or fails there."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.error: Exception | None = None

    def ask_many(self, questions: Any, *, on_text: Any = None, **options: Any) -> Any:
        if on_text is not None:
            on_text("It rises in ")
            assert self.may_end.wait(30)
            if self.error is not None:
                raise self.error
            on_text("the Black Forest [1]. ")
        return super().ask_many(questions, **options)


def test_words_are_sent_while_a_model_writes_them() -> None:
    pipeline = Speaking()
    with serving(pipeline) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        options = {"include_usage": True}
        stream = iter(complete(client, user(QUESTION), stream=True, stream_options=options))
        assert next(stream).choices[0].delta.role == "assistant"
        assert next(stream).choices[0].delta.content == "It rises in "
        assert not pipeline.may_end.is_set()
        pipeline.may_end.set()
        chunks = list(stream)
        spoken, footnote = streamed(chunks).split("\n\n")
        assert (spoken.rstrip(), footnote[:12]) == ("the Black Forest [1].", "[1] [Danube]")
        assert chunks[-2].sources[0]["title"] == "Danube"
        assert chunks[-1].usage.completion_tokens > 8
        pipeline.error = ReaderError("m: the reply broke off")
        with pytest.raises(openai.APIError, match="did not give an answer"):
            list(complete(client, user(QUESTION), stream=True))
        # A limit of tokens needs the whole reply, and so does a request without a stream.
        whole = complete(client, user(QUESTION), max_tokens=3, stream=True)
        assert streamed(whole) == "the Black Forest"


@pytest.mark.anyio
async def test_the_time_limit_is_that_of_the_next_words() -> None:
    class Slow(FakePipeline):
        pauses_s = (0.7, 0.7, 0.7, 0.7)

        def ask_many(self, questions: Any, *, on_text: Any = None, **options: Any) -> Any:
            for pause_s in self.pauses_s:
                time.sleep(pause_s)
                on_text("It ")
            return super().ask_many(questions, **options)

    pipeline = Slow()
    asked = {"messages": [user(QUESTION)], "stream": True}
    async with running(pipeline, timeout_s=2.0) as client:
        reply = await client.post("/v1/chat/completions", json=asked)
        assert reply.text.endswith("data: [DONE]\n\n")
        pipeline.pauses_s = (4.0,)
        reply = await client.post("/v1/chat/completions", json=asked)
        assert refused(reply) == (504, "timeout")


@pytest.mark.anyio
async def test_words_that_others_wrote_load_nothing() -> None:
    pieces = ["See ![it]", "(http://x/a.png) and <img", " src=http://x>."]

    class Loading(FakePipeline):
        def ask_many(self, questions: Any, *, on_text: Any = None, **options: Any) -> Any:
            if on_text is not None:
                for piece in pieces:
                    on_text(piece)
            (answers,) = super().ask_many(questions, **options)
            first = replace(answers.answers[0], text="".join(pieces))
            return [replace(answers, answers=(first,))]

    asked = {"messages": [user(QUESTION)]}
    async with running(Loading()) as client:
        reply = await posted(client, "/v1/chat/completions", **asked)
        whole = reply["choices"][0]["message"]["content"]
        stream = await client.post("/v1/chat/completions", json={**asked, "stream": True})
    assert stream.headers["x-accel-buffering"] == "no"
    events = [
        json.loads(line[6:]) for line in stream.text.split("\n\n") if line.startswith("data: {")
    ]
    spoken = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    inert = r"See ![it]\(http://x/a.png) and &lt;img src=http://x>."
    assert whole.startswith(inert)
    assert spoken.startswith(inert)


def test_a_question_for_yes_or_no_gets_the_passage_that_bears_on_it(client: openai.OpenAI) -> None:
    first = said(client, BEARING)
    lead, quote, _ = first.split("\n\n")
    assert lead.endswith("cannot tell. The passage that bears on it [1]:")
    assert quote == "> The Rhine begins in the Swiss Alps and flows north to the North Sea."
    following = complete(client, user(BEARING), assistant(first), user("And the Danube?"))
    assert following.question != "And the Danube?"


def test_no_answer_is_stated_with_the_best_guess(client: openai.OpenAI) -> None:
    assert said(client, "Who invented the telephone?").startswith(
        "No answer found in the passages (88% sure of that).\n\nBest guess: the western edge [1] (6% sure)."
    )
    reply = complete(client, user("Is there anything at all?"))
    assert reply.choices[0].message.content == "No answer found: no passage seems to hold one."
    assert (reply.sources, reply.confidence) == ([], None)


def test_a_promise_is_told_and_withholds_what_is_not_sure_enough(client: openai.OpenAI) -> None:
    given, withheld = (said(client, question) for question in PROMISED)
    assert given.startswith("two small rivers [1]\n\nPromised: at most 10% of the given answers")
    assert withheld.startswith("No answer is sure enough for what is promised.\n\nBest guess:")
    assert "at most 20% of questions without an answer get one (95% sure, 61% of 150" in withheld


@pytest.mark.anyio
async def test_a_follow_up_is_read_alone() -> None:
    pipeline = FakePipeline()
    question = "And how long is it?"
    async with running(pipeline) as client:
        messages = [user(QUESTION), user(question)]
        reply = await posted(client, "/v1/chat/completions", messages=messages)
    assert pipeline.batches[-1] == [question]
    assert pipeline.contexts[-1] == QUESTION
    assert reply["question"] == f"{QUESTION} {question}"


def test_a_follow_up_question_is_searched_for_behind_the_one_before_it(
    client: openai.OpenAI,
) -> None:
    history = [user(QUESTION)]
    understood = QUESTION
    for question in ("And how long is it?", "Its source?"):
        first = complete(client, *history).choices[0].message.content
        history += [assistant(first), user([{"type": "text", "text": question}])]
        reply = complete(client, *history)
        understood += f" {question}"
        assert reply.question == understood
        assert f"\n\nQuestion as understood: {understood}\n\n" in reply.choices[0].message.content
    other = complete(client, *history, assistant("…"), user(QUESTION))
    assert other.question == QUESTION
    assert "understood" not in other.choices[0].message.content


def test_a_greeting_or_a_task_is_no_question(client: openai.OpenAI) -> None:
    for greeting in ("Hello", "hi there!", "Good morning.", "Thanks, bye"):
        reply = complete(client, user(greeting))
        assert reply.choices[0].message.content.startswith("Ask a question")
        assert (reply.sources, reply.confidence) == ([], None)
    with pytest.raises(openai.UnprocessableEntityError, match="a task for a language model"):
        said(client, "### Task:\nGenerate a title.\n\n### Chat History:\nWhere does it rise?")
    history = [user("Hello"), assistant("Ask a question")]
    assert complete(client, *history, user("And its length?")).question == "And its length?"


def test_a_conversation_that_cannot_be_used_costs_nothing(client: openai.OpenAI) -> None:
    turns = [user("Who wrote it?"), assistant("Johann \ud800Bach"), user("Where was he born?")]
    body = json.dumps({"model": MODEL, "stream": None, "messages": turns})
    headers = {"Content-Type": "application/json", **KEY}
    reply = httpx.post(f"{client.base_url}chat/completions", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    long = [user("Johann " * 3000), assistant("Swiss"), user("And his?")]
    assert complete(client, *long).question == "And his?"


def test_another_model_is_an_error_that_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        complete(client, user(QUESTION), model="gpt-4o")
    assert missing.value.code == "model_not_found"
    assert missing.value.type == "invalid_request_error"


@pytest.mark.anyio
async def test_every_citation_has_a_footnote_with_page_and_link() -> None:
    async with running(ThreeCitations()) as client:
        reply = await posted(client, "/v1/chat/completions", messages=[user("How many?")])
    lines = reply["choices"][0]["message"]["content"].split("\n")
    assert lines[0] == "ten [1][2][3][4]"
    assert lines[2] == "Note: the passages that it cites do not say it."
    assert [line.strip() for line in lines[4:]] == [
        "[1] [Title \\[1\\] (a/rivers.pdf, page \\[12\\])](<http://test/v1/passages/p1>)",
        "[2] [Title \\[2\\]](<https://example.org/a b>)",
        "[3] [Title \\[4\\] (talk.pptx, slide 3)](<http://test/v1/passages/p4>)",
        "[4] [Title \\[3\\]](<http://test/v1/passages/p3>)",
    ]
    assert [source["page"] for source in reply["sources"]] == ["[12]", "", "3", ""]
    assert [source["path"] for source in reply["sources"]][::2] == ["a/rivers.pdf", "talk.pptx"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("stop", ["."]),
        ("logprobs", True),
        ("logit_bias", {"1": 2}),
        ("max_tokens", 0),
        ("n", 2),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_by_its_name(name: str, value: Any) -> None:
    async with running() as client:
        body = {"messages": [user(QUESTION)], name: value}
        reply = await client.post("/v1/chat/completions", json=body)
        empty = await client.post("/v1/chat/completions", json={"messages": [user("")]})
    assert reply.status_code == 422, reply.text
    assert name in reply.json()["error"]["message"]
    assert "message: string should have" in empty.json()["error"]["message"]


def test_what_asks_for_nothing_else_is_accepted(client: openai.OpenAI) -> None:
    whole = complete(client, user(QUESTION)).choices[0]
    values = {"response_format": {"type": "text"}, "logprobs": False, "stop": None, "seed": 3}
    neutral = complete(client, user(QUESTION), tools=[], tool_choice="auto", top_p=0.5, **values)
    assert neutral.choices[0] == whole


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_length_of_a_reply_is_obeyed(client: openai.OpenAI, name: str) -> None:
    whole = complete(client, user(QUESTION))
    total = whole.usage.completion_tokens
    for most in (1, 3, total, total + 1):
        reply = complete(client, user(QUESTION), **{name: most})
        assert reply.usage.completion_tokens == min(most, total)
        assert whole.choices[0].message.content.startswith(reply.choices[0].message.content)
        assert reply.choices[0].finish_reason == ("length" if most < total else "stop")
    chunks = list(complete(client, user(QUESTION), stream=True, **{name: 2}))
    assert streamed(chunks) == "the Black"
    assert chunks[-1].choices[0].finish_reason == "length"
