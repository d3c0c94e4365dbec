"""`rag docs`: the guides that ship with the package."""

import typer


def docs(page: str = "", /) -> None:
    """List the guides, or print one of them.

    Args:
        page: Name of a page, such as tutorial; without one, all are listed.
    """
    from rag.docs.pages import page_titles, read_page

    if page:
        typer.echo(read_page(page.removesuffix(".md")))
        return
    titles = page_titles()
    width = max(map(len, titles))
    typer.echo("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
    typer.echo("\nread a page with: rag docs tutorial")
