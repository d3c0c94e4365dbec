"""Packages that not everybody installs."""

from rag.core.errors import MissingDependencyError
from rag.core.optional import require
from tests.support.messages import refusal


def test_missing_package_names_the_extra() -> None:
    with refusal(MissingDependencyError):
        require("no_such_package_anywhere", extra="zstd")
