"""The pages of the documentation by name."""

from importlib.resources import files

from rag.core.errors import ConfigError

START = "index"


def page_titles() -> dict[str, str]:
    """The first heading of every page by the page's name, the start page first.

    Example:
        >>> list(page_titles())[0]
        'index'
        >>> page_titles()["tutorial"]
        'Tutorial: from your own data to a trained retriever'
    """
    names = sorted(
        entry.name[:-3] for entry in files("rag.docs").iterdir() if entry.name.endswith(".md")
    )
    names.sort(key=lambda name: name != START)
    return {name: read_page(name).partition("\n")[0].removeprefix("# ") for name in names}


def read_page(name: str) -> str:
    """The Markdown text of a page.

    Raises:
        ConfigError: there is no page of this name; the hint lists those that there are.
    """
    page = files("rag.docs") / f"{name}.md"
    names = [entry.name[:-3] for entry in files("rag.docs").iterdir() if entry.name.endswith(".md")]
    if name not in names:
        raise ConfigError(
            f"there is no page {name!r}", hint=f"there are {', '.join(sorted(names))}"
        )
    return page.read_text(encoding="utf-8")
