"""The MCP server through the SDK's own client: in memory, over HTTP, and as a command over standard
input.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client

import rag
from rag.core.wording import WITHHELD
from rag.integrations.mcp import create_mcp_server
from tests.api.fakes import PROMISED, PROMISED_CLAIM, FakePipeline
from tests.support.verifying import WordVerifier

pytestmark = pytest.mark.anyio
QUESTION = "Where does the Danube rise?"


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of a call; deep-research clients read the same from the only text."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    (text,) = result.content
    assert json.loads(text.text) == result.structured_content
    return result.structured_content


async def check(client: Client) -> None:
    result = (await call(client, "search", query=QUESTION))["results"]
    assert result[0]["id"] == "rivers/1"
    document = await call(client, "fetch", id=result[0]["id"])
    assert {"id", "title", "text", "url", "metadata"} == document.keys()
    assert document["text"].startswith("The Danube rises in the Black Forest")
    assert document["url"] == result[0]["url"]
    answered = await call(client, "ask", question=QUESTION)
    assert answered["best_guess"] in document["text"]
    assert answered["evidence"]["id"] == "rivers/1"
    is_none = answered["no_answer_confidence"] > 0.5
    assert answered["answer"] == (None if is_none else answered["best_guess"])
    assert (answered["certainty"] == "none") is is_none


async def test_tools_and_resources(pipeline: rag.Pipeline) -> None:
    async with Client(create_mcp_server(pipeline, top_k=3)) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["search", "fetch", "ask", "verify"]
        assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
        assert [list(tool.input_schema["properties"]) for tool in tools] == [
            ["query"],
            ["id"],
            ["question"],
            ["claim"],
        ]
        await check(client)
        results = (await call(client, "search", query=QUESTION))["results"]
        expected = pipeline.retrieve(QUESTION, 3)
        assert [item["id"] for item in results] == [passage.id for _, passage in expected]
        urls = {item["id"]: (item["url"], item["title"]) for item in results}
        assert urls["rivers/1"] == ("passage://rivers%2F1", "Danube")
        assert urls["web#3"] == ("https://example.org/kenya", "web#3")
        assert (await call(client, "fetch", id="web#3"))["metadata"][
            "path"
        ] == "https://example.org/kenya"
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "passage://{passage_id}"
        (content,) = (await client.read_resource("passage://rivers%2F2")).contents
        assert content.text.startswith("Rhine\n\nThe Rhine begins")


async def test_a_promise_is_told_and_withholds_what_is_not_sure_enough() -> None:
    pipeline: Any = FakePipeline()
    async with Client(create_mcp_server(pipeline)) as client:
        given, withheld = [await call(client, "ask", question=each) for each in PROMISED]
        judged = await call(client, "verify", claim=PROMISED_CLAIM)
    assert judged["promised"].startswith("at most 10% of the given verdicts are wrong")
    assert (given["answer"], given["note"]) == ("two small rivers", "")
    assert (withheld["answer"], withheld["note"]) == (None, WITHHELD)
    assert withheld["best_guess"] == "two small rivers"
    assert given["promised"].startswith("at most 10% of the given answers are wrong and at most")
    assert withheld["promised"].endswith("(95% sure, 61% of 150 questions answered)")


async def test_a_claim_is_judged_with_the_sentence_that_decides(folder: Path) -> None:
    question = "Does the Danube rise in the Alps?"
    with rag.Pipeline.open(folder, reader=False, verifier=WordVerifier()) as pipeline:
        async with Client(create_mcp_server(pipeline)) as client:
            supported, refuted, asked = [
                await call(client, "verify", claim=claim)
                for claim in (
                    "The Danube rises in the Black Forest.",
                    "The Rhine never begins in the Swiss Alps.",
                    question,
                )
            ]
    assert supported["label"] == "supported"
    assert supported["sentence"] == "The Danube rises in the Black Forest of Germany."
    assert supported["evidence"]["id"] == "rivers/1"
    assert supported["confidence"] > 0.5
    assert (refuted["label"], refuted["evidence"]["id"]) == ("refuted", "rivers/2")
    assert (asked["label"], asked["evidence"], asked["promised"]) == ("not_judged", None, "")
    assert "question" in asked["note"]


async def test_wrong_requests_are_explained(pipeline: rag.Pipeline) -> None:
    async with Client(create_mcp_server(pipeline)) as client:
        for tool, arguments, words in (
            ("fetch", {"id": "nothing"}, "no passage has the id 'nothing'; ids come from `search`"),
            ("search", {"query": " "}, "question is empty"),
            ("ask", {}, "ask: 'question' is missing, expected text"),
            ("verify", {"claim": " "}, "claim is empty"),
            ("ask", {"question": 5}, "ask: 'question' is no text, expected text"),
            ("search", {}, "query"),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert words in result.content[0].text
        with pytest.raises(MCPError, match="no passage has the id 'a/b'"):
            await client.read_resource("passage://a%2Fb")


async def test_the_command_over_standard_input(folder: Path) -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "rag.cli.main", "mcp", "--index", str(folder)],
        env={"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    async with Client(stdio_client(command)) as client:
        await check(client)
