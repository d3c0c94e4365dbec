"""The web page over people's own files: folders, links, uploads, and what stands around a
passage.
"""

from dataclasses import replace

import pytest

from rag.core.types import Location
from rag.pipeline import Pipeline
from serve.app import create_app
from tests import document_makers as make
from tests.api.fakes import ADMIN, FOLDERS, FakePipeline, listening, serving, settings
from tests.support.files import index_files

QUESTION = "Where does the Danube rise?"


def test_a_folder_is_chosen_and_what_stands_around_a_passage_is_shown(driver, page_at):
    class Located(FakePipeline):
        """Passages that have a place in a file."""

        def ask_many(self, questions, **options):
            return [located(result) for result in super().ask_many(questions, **options)]

    def located(result):
        answers = []
        for answer in result.answers:
            evidence = replace(answer.evidence, location=Location("guide/rivers.md"))
            answers.append(replace(answer, evidence=evidence))
        return replace(result, answers=tuple(answers))

    service = Located("v1")
    with serving(service) as url:
        page = page_at(url)
        page.complaints()
        page.open().until(lambda: page.texts("#folder option") == ["all folders", *FOLDERS])
        page.ask(QUESTION)
        assert service.filters[-1] is None
        page.all("#folder")[0].send_keys("guide/")
        page.until(lambda: service.filters[-1] is not None)
        assert service.filters[-1][0].values == ("guide/",)
        page.settled()
        assert driver.current_url.endswith("&folder=guide%2F")
        page.all("button.around")[0].click()
        page.until(lambda: page.texts(".near"))
        assert page.texts(".near")[0].startswith("The Rhine begins")
        page.open("/?q=Where%20does%20the%20Danube%20rise%3F&folder=moved%2F").settled()
        assert service.filters[-1][0].values == ("moved/",)
        assert page.script("return document.getElementById('folder').value") == "moved/"
        assert page.complaints() == []


def opened(given):
    return Pipeline.open(given.index, retriever="bm25")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder of files, and its index."""
    files = {
        "my guide/rivers.md": "# Rivers\n\nThe *Danube* rises in the Black Forest.\n",
        "my guide/boats.pdf": make.pdf(
            [
                [(72, 700, 12, "F", "Boats were hollowed out of trees.")],
                [(72, 700, 12, "F", "The oldest canoe was found in Pesse.")],
            ]
        ),
        "my guide/towns.html": "<title>Towns</title><h1>Towns</h1><p>Ulm lies on it.</p>",
    }
    return index_files(tmp_path_factory.mktemp("corpus"), files)


def assert_opened(page, text="", end=""):
    """A window was opened that shows a text, at an address that ends so; close it."""
    driver = page.driver
    page.until(lambda: len(driver.window_handles) == 2)
    driver.switch_to.window(driver.window_handles[-1])
    page.until(lambda: driver.current_url.endswith(end) and text in page.text("body"))
    driver.close()
    driver.switch_to.window(driver.window_handles[0])


def test_without_keys_a_source_is_a_link_to_its_file(page_at, corpus):
    folder, index = corpus
    app = create_app(settings(index=index, files=folder), open_pipeline=opened)
    with listening(app) as url:
        page = page_at(url)
        page.until(lambda: app.state.engine.state == "ready", 120)
        page.open().until(lambda: page.texts("#folder option")[1:] == ["my guide/"])
        page.ask("Where does the Danube rise?")
        page.all(".card .id a")[0].click()
        assert_opened(page, "The *Danube* rises")


def test_with_a_key_files_are_added_and_opened(driver, page_at, corpus, tmp_path):
    folder, index = corpus
    given = settings(index=index, files=folder, api_keys=ADMIN)
    app = create_app(given, open_pipeline=opened)
    with listening(app) as url:
        page = page_at(url)
        page.until(lambda: app.state.engine.state == "ready", 120)
        page.open().until(lambda: page.is_visible("#key"))
        assert not page.is_visible("#upload")  # there is no key yet
        page.all("#key")[0].send_keys("admin")
        assert page.is_visible("#upload")
        added = tmp_path / "zoo.md"
        empty = tmp_path / "empty.md"
        added.write_text("# Zoo\n\nThe giraffe is tall.\n")
        empty.write_text("")
        page.all("#upload-files")[0].send_keys(f"{added}")
        page.until(lambda: page.text("#upload-note") == "Added: zoo.md (1 passage)")
        page.until(lambda: "4 passages" in page.text("#tagline"))
        page.ask("How tall is the giraffe?")
        assert page.texts(".card .id")[0] == "zoo.md"
        page.all("#upload-files")[0].send_keys(f"{empty}")
        page.until(lambda: "Nothing was added: empty.md: empty" in page.text("#upload-note"))
        page.all("#upload-files")[0].send_keys(f"{added}\n{empty}")
        note = "Added: zoo.md (1 passage). Not added: empty.md: empty"
        page.until(lambda: note in page.text("#upload-note"))
        assert page.all("#upload")[0].is_enabled()
        page.complaints()  # the refusal is one

        downloads = {"behavior": "allow", "downloadPath": str(tmp_path / "got")}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
        page.ask("Where does Ulm lie?")
        page.all(".card .id a")[0].click()
        page.until(lambda: (tmp_path / "got" / "towns.html").exists())  # no markup is opened
        page.ask("Where was the oldest canoe found?")
        page.all(".card .id a")[0].click()
        assert_opened(page, end="#page=2")
        page.ask("Where does the Danube rise?")
        link = page.all(".card .id a")[0]
        assert link.text == "my guide/rivers.md"
        link.click()
        assert_opened(page, "The *Danube* rises")
        assert page.complaints() == []
