"""The guides: Markdown pages that ship with the package, and the generator of the page of settings."""
