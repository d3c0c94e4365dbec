"""`rag docs`: the guides that ship with the package."""

from pathlib import Path
from typing import Annotated

import typer


def docs(
    page: Annotated[
        str, typer.Argument(help="Name of a page, such as tutorial; without one, all are listed.")
    ] = "",
    build: Annotated[
        Path | None,
        typer.Option(help="Build a static site with the guides, results and API reference in this folder."),
    ] = None,
) -> None:
    """List the guides, or print one of them, or build them into a static site."""
    if build is not None:
        from rag.docs.site import build_site

        typer.echo(f"{build_site(build)} pages: open {build / 'index.html'}")
        return
    from rag.docs.pages import page_titles, read_page

    if page:
        typer.echo(read_page(page.removesuffix(".md")))
        return
    titles = page_titles()
    width = max(map(len, titles))
    typer.echo("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
    typer.echo("\nread one with: rag docs tutorial")
