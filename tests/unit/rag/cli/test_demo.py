from pathlib import Path

import pytest

from rag.cli.look import demo


@pytest.mark.slow
def test_the_demo_indexes_serves_and_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo(out=tmp_path / "index", port=0)
    shown = capsys.readouterr().out
    assert "Khartoum" in shown  # where the Blue Nile and the White Nile come together
    assert "rag ask" in shown
