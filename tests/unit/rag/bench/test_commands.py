import pytest

from tests.commands import exit_code, run_command

NAMES = ("encode", "search", "codes", "languages", "serve", "shelves", "rights", "read", "promise")


def test_every_benchmark_is_a_command_with_help() -> None:
    listing = run_command(["bench", "--help"]).output
    for name in NAMES:
        assert name in listing
        assert run_command(["bench", name, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "--index", "i", "--batch-sizes", "none"],
        ["serve", "--index", "i", "--questions", "q", "--clients", "0"],
    ],
)
def test_wrong_values_are_refused_before_anything_is_read(arguments: list[str]) -> None:
    assert exit_code("bench", *arguments) == 2
