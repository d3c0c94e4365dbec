"""The guides: Markdown pages that ship with the package."""
