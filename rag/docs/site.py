"""Builds the guides, the results and the API reference into a static site: `rag docs --build OUT`.

Nothing in it is fetched from elsewhere: style, search and pictures are files of the site.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from rag.core.errors import ConfigError, DataError
from rag.core.optional import require
from rag.docs.api import api_pages
from rag.docs.pages import START, page_titles, read_page

_PACKAGE = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#:\s]+\.md)(#[^)\s]*)?\)")


def build_site(out: Path) -> int:
    """Write the site; returns the number of its pages.

    Raises:
        ConfigError: `out` is a folder that holds something else.
        DataError: a link of a page leads nowhere.
        MissingDependencyError: the packages of the extra `site` are not installed.
    """
    require("properdocs", extra="site")
    from properdocs.commands.build import build
    from properdocs.config import load_config
    from properdocs.exceptions import Abort

    if out.exists() and any(out.iterdir()) and not (out / "sitemap.xml").exists():
        raise ConfigError(
            f"{out} holds other files", hint="give a new folder, or one that this command wrote"
        )
    with tempfile.TemporaryDirectory(prefix="rag-site-") as scratch:
        source = Path(scratch) / "pages"
        pages = _write_pages(source)
        settings = Path(scratch) / "site.yml"
        settings.write_text("site_name: openqa-rag\n", encoding="utf-8")
        config = load_config(
            config_file=str(settings),
            site_name="openqa-rag",
            docs_dir=str(source),
            site_dir=str(out.absolute()),
            use_directory_urls=False,  # pages open from the disk too
            theme={"name": "mkdocs", "highlightjs": False, "navigation_depth": 2, "color_mode": "auto"},
            markdown_extensions=["tables", "fenced_code", {"toc": {"permalink": True}}],
            plugins=["search"],
            nav=_navigation(pages),
            strict=True,
            validation={"links": {"anchors": "warn"}},
        )
        try:
            build(config)
        except Abort as error:
            raise DataError(f"the site has dead links ({error})", hint="the log above names them") from error
    return len(pages)


def _write_pages(source: Path) -> list[str]:
    """Guides at the top, the results under `bench/`, the reference under `api/`; links follow the files."""
    homes = {
        path: PurePosixPath(path.relative_to(_PACKAGE / "docs")) for path in (_PACKAGE / "docs").glob("*.md")
    }
    homes |= {path: PurePosixPath(path.relative_to(_PACKAGE)) for path in (_PACKAGE / "bench").rglob("*.md")}
    for path, home in homes.items():
        target = source / home
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_relinked(path, home, homes), encoding="utf-8")
    if (pictures := _PACKAGE / "docs" / "images").is_dir():
        shutil.copytree(pictures, source / "images")
    (source / "api").mkdir()
    reference = api_pages()
    for name, text in reference.items():
        (source / "api" / f"{name}.md").write_text(text, encoding="utf-8")
    return sorted([*map(str, homes.values()), *(f"api/{name}.md" for name in reference)])


def _relinked(path: Path, home: PurePosixPath, homes: dict[Path, PurePosixPath]) -> str:
    """A page whose links lead to where the site has their targets; those to other files become plain text."""

    def moved(link: re.Match[str]) -> str:
        target = (path.parent / link[2]).resolve()
        if target in homes:
            return f"[{link[1]}]({os.path.relpath(homes[target], home.parent)}{link[3] or ''})"
        return link[1] if target.exists() else link[0]

    return _LINK.sub(moved, path.read_text(encoding="utf-8"))


def _navigation(pages: list[str]) -> list[dict[str, object]]:
    titles = page_titles()

    def listed(names: list[str]) -> list[dict[str, str]]:
        return [{titles[name].partition(":")[0]: f"{name}.md"} for name in names]

    guides = _guides_by_heading()
    notes = [page for page in pages if page.startswith("bench/") and page != "bench/RESULTS.md"]
    return [
        {"Start": f"{START}.md"},
        {"Tasks": listed(["tutorial", *guides["By task"]])},
        {"Methods": listed(guides["By system of the literature"])},
        {"Look up": listed(guides["To look up"])},
        {"Results": [{"Results": "bench/RESULTS.md"}, *({Path(page).stem: page} for page in notes)]},
        {"API": [{Path(page).name.removesuffix(".md"): page} for page in pages if page.startswith("api/")]},
    ]


def _guides_by_heading() -> dict[str, list[str]]:
    """Names of the guides that the start page links to, under each of its headings."""
    _, *sections = re.split(r"^## ", read_page(START), flags=re.MULTILINE)
    return {
        section.partition("\n")[0]: [link[1] for link in re.finditer(r"\]\((\w[\w-]*)\.md\)", section)]
        for section in sections
    }
