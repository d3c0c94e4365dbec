"""`rag.recipe`: every name is there, and importing the module imports nothing heavy."""

import subprocess
import sys
from importlib import import_module

import pytest

from rag import recipe


@pytest.mark.parametrize("name", recipe.__all__)
def test_every_name_is_imported_when_used(name: str) -> None:
    assert getattr(recipe, name) is getattr(import_module(recipe._HOMES[name]), name)


def test_importing_it_costs_nothing() -> None:
    code = "import sys, rag.recipe; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'Losses'"):
        recipe.Losses  # noqa: B018
