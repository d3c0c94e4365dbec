"""The web page of servers with keys, with feedback, and below a path of a proxy."""

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rag.data.questions import read_questions
from serve.app import create_app
from serve.settings import hash_api_key
from tests.api.fakes import ADMIN, FOLDERS, listening, serving, settings
from tests.e2e.test_page_of_files import opened
from tests.support.files import index_files

QUESTION = "Where does the Danube rise?"


def test_a_server_with_keys_asks_for_one(page_at):
    with serving(api_keys=(hash_api_key("sésame-ключ"),)) as address:
        own = page_at(address).open()
        own.until(lambda: own.is_visible("#key"))
        own.ask(QUESTION)
        assert own.text(".error h2") == "An API key is needed"
        assert "Type it into the field above." in own.text(".error")
        assert own.focused == "key"
        own.all("#key")[0].send_keys("sésame-ключ")
        assert not own.is_visible("#folder-row")  # names of files are for those with a key
        own.all(".error button")[0].click()
        own.until(lambda: own.text(".answer") == "the Black Forest")
        own.until(lambda: own.is_visible("#folder-row"))
        assert own.texts("#folder option") == ["all folders", *FOLDERS]
        own.open()  # the tab keeps the key
        own.until(lambda: own.is_visible("#folder-row"))
        own.ask(QUESTION)
        assert own.text(".answer") == "the Black Forest"


def test_an_index_that_may_not_be_written_takes_no_files(page_at, tmp_path, monkeypatch):
    monkeypatch.setattr("serve.shelves.os.access", lambda *_: False)
    with serving(api_keys=ADMIN, index=tmp_path) as address:
        page = page_at(address).open()
        page.until(lambda: page.is_visible("#key"))
        page.all("#key")[0].send_keys("admin")
        assert not page.all("#upload")[0].is_enabled()
        reason = "its folder is read-only for this server"
        assert page.text("#upload-note") == f"Files cannot be added: {reason}."


def test_two_buttons_keep_a_judgement(page, page_at, tmp_path):
    from selenium.webdriver.common.keys import Keys

    assert page.all(".feedback") == []
    path = tmp_path / "feedback.jsonl"
    with serving(feedback_file=path) as address:
        page = page_at(address).open()
        # The server's settings are there.
        page.until(lambda: "Answers from" in page.text("#tagline"))
        page.ask(QUESTION)
        assert page.texts(".feedback button") == ["Right", "Wrong"]
        page.all(".feedback button")[0].click()
        page.until(lambda: "judgement is kept" in page.text(".feedback"))
        page.ask("Which word follows the letters?")
        page.all(".feedback button")[1].click()
        page.press("tomorrow", Keys.ENTER)
        page.until(lambda: "judgement is kept" in page.text(".feedback"))
        assert page.complaints() == []
    right, better = read_questions(path)
    assert (right.answers, right.gold_passage_ids) == (("the Black Forest",), ("danube-1",))
    assert (better.answers, better.meta["shown_answer"]) == (("tomorrow",), "mañana")


def test_a_proxy_may_serve_the_page_below_a_path(page_at):
    with serving(example_questions=("Who?",)) as behind, listening(below("/qa", behind)) as outside:
        page = page_at(outside)
        page.complaints()
        page.open("/qa/").until(lambda: page.texts("#examples li") == ["Who?"])
        page.ask(QUESTION)
        assert page.texts(".answer") == ["the Black Forest"]
        assert page.script("return location.href").startswith(f"{outside}/qa/?q=Where")
        assert page.complaints() == []
        page.all("h1 a")[0].click()
        page.until(lambda: page.script("return location.pathname + location.search") == "/qa/")
        page.open("/qa/docs").until(lambda: page.all("#operations-questions-ask_v1_ask_post"), 200)
        try_it_out(page, "healthz_healthz_get", "/healthz")
        page.until(lambda: f"{outside}/qa/healthz" in page.text(".request-url"))
        assert [line for line in page.complaints() if "data:image" not in line] == []


def below(prefix: str, address: str) -> Starlette:
    """A proxy that passes on what stands below a path, and nothing else."""

    async def forward(request: Request) -> Response:
        async with httpx.AsyncClient(base_url=address) as client:
            path = f"/{request.path_params['path']}?{request.url.query}"
            headers = {"Content-Type": request.headers.get("content-type", "")}
            content = await request.body()
            reply = await client.request(request.method, path, content=content, headers=headers)
        media_type = reply.headers["content-type"]
        return Response(reply.content, reply.status_code, media_type=media_type)

    return Starlette(routes=[Route(prefix + "/{path:path}", forward, methods=["GET", "POST"])])


def try_it_out(page, operation: str, path: str) -> None:
    """Click Execute once the page has resolved the operation: a click before that disables the
    button.
    """
    page.script(f"document.querySelector('[id$={operation}] .opblock-summary-control').click()")
    resolved = f"return !!ui.specSelectors.specResolvedSubtree(['paths', '{path}', '{operation.split('_')[-1]}'])"
    page.until(lambda: page.script(resolved) and page.all(".execute:enabled"), 100)
    page.script("document.querySelector('.execute').click()")


def test_shelves_are_chosen_and_named(page_at, tmp_path):
    shelves = []
    for name in ("Danube", "Rhine"):
        text = f"# River\n\nThe {name} rises in the {name} hills.\n"
        _, index = index_files(tmp_path / name, {"river.md": text})
        shelves.append(f"{name}={index}")
    app = create_app(settings(shelf=tuple(shelves)), opened)
    with listening(app) as address:
        page = page_at(address).open()
        page.until(lambda: page.is_visible("#shelf-row"))
        assert page.texts("#shelf option") == ["all shelves", "Danube", "Rhine"]
        page.ask("Where does the river rise?")
        assert sorted(page.texts(".card .shelf")) == ["shelf Danube", "shelf Rhine"]
        page.script(
            "const shelf = document.getElementById('shelf'); shelf.value = 'Rhine';"
            "shelf.dispatchEvent(new Event('change'))"
        )
        page.until(lambda: page.texts(".card .shelf") == ["shelf Rhine"])
        assert page.script("return location.search").endswith("shelf=Rhine")
        page.all(".card .around")[0].click()
        page.until(lambda: not page.all(".card .around"))
        page.open("/?q=river&shelf=Danube")
        page.until(lambda: page.texts(".card .shelf") == ["shelf Danube"])
        # Passages of one id on two shelves are two.
        page.open("/?verify=The+Danube+rises+in+the+Danube+hills.")
        both = ["shelf Danube", "shelf Rhine"]
        page.until(lambda: sorted(page.texts(".card .shelf")) == both)
