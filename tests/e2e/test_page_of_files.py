"""The web page over people's own files: folders, and what stands around a passage."""

from __future__ import annotations

from dataclasses import replace

from rag.core.types import Location
from serve.app import create_app
from tests.api.fakes import FakeService, listening, settings

QUESTION = "Where does the Danube rise?"


def test_a_folder_is_chosen_and_what_stands_around_a_passage_is_shown(driver, shots, tmp_path):
    from tests.e2e.page import Page

    class Located(FakeService):
        """Passages that have a place in a file."""

        def ask(self, questions, **options):
            found = super().ask(questions, **options)
            return [
                replace(one, answers=tuple(self._located(answer) for answer in one.answers)) for one in found
            ]

        @staticmethod
        def _located(answer):
            return replace(answer, evidence=replace(answer.evidence, location=Location("guide/rivers.md")))

    service = Located("v1")
    with listening(create_app(settings(), service)) as url:
        page = Page(driver, url, shots)
        page.complaints()
        page.open().until(lambda: page.texts("#folder option") == ["all folders", "guide/", "guide/setup/"])
        page.ask(QUESTION)
        assert service.filters[-1] is None
        page.all("#folder")[0].send_keys("guide/")
        page.until(lambda: service.filters[-1] is not None)
        assert service.filters[-1].conditions[0].values == ("guide/",)
        page.settled()
        assert driver.current_url.endswith("&folder=guide%2F")
        page.all("button.around")[0].click()
        page.until(lambda: page.texts(".near"))
        assert page.texts(".near")[0].startswith("The Rhine begins")
        page.shoot("folder-and-neighbours")
        assert page.complaints() == []
