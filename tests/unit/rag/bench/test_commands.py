import pytest
from typer.testing import CliRunner

from rag.cli.bench import app
from tests.commands import exit_code

NAMES = ("encode", "search", "codes", "serve", "read")


def test_every_benchmark_is_a_command_with_help() -> None:
    runner = CliRunner()
    listing = runner.invoke(app, ["--help"]).output
    for name in NAMES:
        assert name in listing
        assert runner.invoke(app, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "--index", "i", "--batch-sizes", "none"],
        ["serve", "--index", "i", "--questions", "q", "--clients", "0"],
    ],
)
def test_wrong_values_are_refused_before_anything_is_read(arguments: list[str]) -> None:
    assert exit_code("bench", *arguments) == 2
