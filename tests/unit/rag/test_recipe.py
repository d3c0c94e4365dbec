"""`rag.recipe`: every name is there."""

from importlib import import_module

import pytest

from rag import recipe


@pytest.mark.parametrize("name", recipe.__all__)
def test_every_name_is_imported_when_used(name: str) -> None:
    assert getattr(recipe, name) is getattr(import_module(recipe._HOMES[name]), name)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Losses'"):
        recipe.Losses  # noqa: B018
