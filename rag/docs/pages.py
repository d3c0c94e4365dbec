"""The pages of the documentation by name."""

from importlib.resources import files

from rag.core.errors import ConfigError, did_you_mean

START = "index"


def page_titles() -> dict[str, str]:
    """The first heading of every page by the page's name, the start page first.

    Example:
        >>> list(page_titles())[0]
        'index'
        >>> page_titles()["tutorial"]
        'Tutorial: from your own data to a trained retriever'
    """
    names = sorted(entry.name[:-3] for entry in files("rag.docs").iterdir() if entry.name.endswith(".md"))
    names.sort(key=lambda name: name != START)
    return {name: read_page(name).partition("\n")[0].removeprefix("# ") for name in names}


def read_page(name: str) -> str:
    """The Markdown text of a page.

    Raises:
        ConfigError: there is no page of this name.

    Example:
        >>> read_page("indx")
        Traceback (most recent call last):
        ...
        rag.core.errors.ConfigError: there is no page 'indx'
          → did you mean 'index'?
    """
    page = files("rag.docs") / f"{name}.md"
    names = [entry.name[:-3] for entry in files("rag.docs").iterdir() if entry.name.endswith(".md")]
    if name not in names:
        hint = did_you_mean(name, names, f"there are {', '.join(sorted(names))}")
        raise ConfigError(f"there is no page {name!r}", hint=hint)
    return page.read_text(encoding="utf-8")
