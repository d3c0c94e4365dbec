"""A hook of the site builder: a start page, and a search that also works from the disk."""

import json
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_suffix(".js")


_START = """<!doctype html><meta charset="utf-8"><title>openqa-rag</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">openqa-rag</a>
"""


def on_post_build(config: Any, **_: Any) -> None:
    """Put the index into the script that searches it, in place of the theme's; add a start page."""
    (Path(config.site_dir) / "index.html").write_text(_START, encoding="utf-8")
    folder = Path(config.site_dir) / "search"
    entries = json.loads((folder / "search_index.json").read_text(encoding="utf-8"))["docs"]
    entries.sort(key=lambda entry: _rank(entry["location"]))
    for entry in entries:
        if _rank(entry["location"]) == 2:  # names are titles, and their descriptions are long
            entry["text"] = entry["text"][:200]
    index = f"const entries = {json.dumps(entries, ensure_ascii=False)};\n"
    (folder / "main.js").write_text(index + _SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")


def _rank(location: str) -> int:
    """Guides before measurements before the reference of names."""
    return 2 if location.startswith("docs/api/") else 0 if location.startswith("docs/") else 1
