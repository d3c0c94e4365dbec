import pytest

from tests.commands import exit_code, run_successfully

NAMES = ("encode", "search", "codes", "languages", "serve", "rights", "read", "promise")


def test_every_benchmark_is_a_command_with_help() -> None:
    listing = run_successfully("bench", "--help")
    for name in NAMES:
        assert name in listing
        run_successfully("bench", name, "--help")


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "--index", "i", "--batch-sizes", "none"],
        ["serve", "--index", "i", "--questions", "q", "--clients", "0"],
    ],
)
def test_wrong_values_are_refused_before_anything_is_read(arguments: list[str]) -> None:
    assert exit_code("bench", *arguments) == 2
