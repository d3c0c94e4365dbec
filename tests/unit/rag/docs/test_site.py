"""The static site: built by the command, every link alive, nothing from elsewhere."""

import html
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

import rag
from rag.cli.main import main
from rag.docs.pages import page_titles
from rag.docs.site import build_site

_TARGET = re.compile(r"<(?P<tag>\w+)\b[^>]*?\s(?:src|href)=\"(?P<target>[^\"]*)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "out"
    with pytest.raises(SystemExit) as stopped:
        main(["docs", "--build", str(out)])
    assert stopped.value.code == 0
    return out


def test_every_link_is_alive_and_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = {
        path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"
    }
    anchors = {path: set(re.findall(r'\sid="([^"]+)"', text)) for path, text in pages.items()}
    dead, n_links = [], 0
    for path, text in pages.items():
        for match in _TARGET.finditer(text):
            target = html.unescape(match["target"])
            if target.startswith(("http://", "https://")):
                assert match["tag"] == "a", f"{path.name} loads {target}"
                continue
            name, _, anchor = target.partition("#")
            to = (path.parent / unquote(name)).resolve() if name else path
            n_links += 1
            if not to.is_file() or (anchor and to in pages and unquote(anchor) not in anchors[to]):
                dead.append((path.name, target))
    assert not dead
    assert n_links > 1000


def test_guides_and_public_names_are_in_it(site: Path) -> None:
    assert {f"{name}.html" for name in page_titles()} <= {path.name for path in site.glob("*.html")}
    reference = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    for name in set(rag.__all__) - {"__version__"}:
        assert re.search(rf'<h3 id="{name.lower()}[_0-9]*"', reference), name
    assert "class ConfigError" in html.unescape(re.sub(r"<[^>]+>", "", reference))
    assert "Raises" in reference


def test_menus_group_the_guides_as_the_start_page_does(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    bar = start[start.index('id="navbar-collapse"') : start.index('role="main"')]
    menus = {
        menu[1]: re.findall(r'href="([^"]+)\.html"', menu[2])
        for menu in re.finditer(r'aria-expanded="false">([^<]+)</a>(.*?)</ul>', bar, re.DOTALL)
    }
    assert {"tutorial", "indexing", "python", "scale", "evaluating"} <= set(menus["Tasks"])
    assert menus["Methods"][:2] == ["dpr", "ance"]
    assert not set(menus["Tasks"]) & set(menus["Methods"])
    assert set(page_titles()) - {"index"} <= {name for names in menus.values() for name in names}


def test_a_folder_with_other_files_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(rag.RagError, match="holds other files"):
        build_site(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
