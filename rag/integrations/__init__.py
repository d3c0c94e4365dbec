"""A retriever for LangChain and an MCP server; all else connects to `rag serve` by OpenAI's
protocol.
"""

from rag.core.types import Passage


def passage_metadata(passage: Passage) -> dict[str, object]:
    """Title, and file, page and headings where they are known.

    Example:
        >>> passage_metadata(Passage("1", "Danube", "It rises in the Black Forest."))
        {'title': 'Danube'}
    """
    return {"title": passage.title, **(passage.location.to_json() if passage.location else {})}
