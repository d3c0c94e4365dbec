"""Takes the pictures that README and guides show: `python -m tests.e2e.screenshots`.

Everything is real: the sample corpus is indexed, served and evaluated.
"""

import io
import subprocess
import sys
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Any

from PIL import Image

from rag.bench.server_process import ServerProcess
from rag.sample import questions_path
from tests.e2e.browser import start_browser
from tests.e2e.page import Page

IMAGES = Path(__file__).parents[2] / "rag" / "docs" / "images"
QUESTION = "What did soldiers call the X-ray cars of the First World War?"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        index, report = folder / "index", folder / "results" / "hybrid"
        _rag("index", "sample", "--split", "none", "--retriever", "hybrid", "--out", str(index))
        questions = ("--questions", str(questions_path()), "--split", "test")
        _rag("evaluate", "--index", str(index), *questions, "--out", str(report))
        driver = start_browser(folder / "profile")
        try:
            with ServerProcess(index) as server:
                page = Page(driver, f"http://{server.host}:{server.port}")
                page.media(width=900, height=600)
                page.open().ask(QUESTION)
                _take(driver, "page", page.script("return document.querySelector('footer').offsetTop - 16"))
            driver.get((report / "report.html").as_uri())
            _take(driver, "report", 1250)
        finally:
            driver.quit()


def _rag(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "rag.cli.main", *arguments], check=True, stdout=subprocess.DEVNULL)


def _take(driver: Any, name: str, height: int) -> None:
    """The top `height` pixels, in 64 colours."""
    clip = {"x": 0, "y": 0, "width": 900, "height": height, "scale": 1}
    taken = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    picture = Image.open(io.BytesIO(b64decode(taken["data"]))).convert("RGB")
    target = IMAGES / f"{name}.png"
    picture.quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
