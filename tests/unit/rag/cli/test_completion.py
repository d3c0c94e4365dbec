"""The shell completes what --config takes, without loading what training needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import sys
sys.argv[0] = "rag"
from rag.cli.main import main
try:
    main()
finally:
    print([name for name in ("torch", "numpy", "transformers") if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rag train dpr --config dpr-s", ["dpr-small", "dpr-slow.yaml"]),
        ("rag train static --config=", ["dpr-slow.yaml", "own.json"]),
        ("rag train reader --config ./o", ["./own.json"]),
        ("rag rounds --recipe distill --config dis", ["distill-small"]),
        ("rag adapt --config retriever-a", ["retriever-adapt"]),
    ],
)
def test_presets_of_the_recipe_and_files_are_completed(
    line: str, expected: list[str], tmp_path: Path
) -> None:
    for name in ("dpr-slow.yaml", "own.json", "notes.txt"):
        (tmp_path / name).touch()
    asked = {"_RAG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", _CODE], cwd=tmp_path, env={**os.environ, **asked},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == expected
    assert done.stderr.strip() == "[]"
