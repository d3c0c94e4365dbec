"""Commands run in this process."""

import pytest

from rag.cli.main import main


def exit_code(*arguments: object) -> int:
    """Run `rag` with these arguments, and return the exit code."""
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, arguments)))
    return int(caught.value.code or 0)
