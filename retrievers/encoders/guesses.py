"""What published encoders need and their folders do not state, known by the names of the models.

A guess is never silent: each comes with the sentence that names the option to set otherwise.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from rag.core.errors import with_hub_names
from retrievers.encoders.settings import FID_LAYOUT, FID_PREFIX

# What a model's name contains → what comes before questions on its card, and what passages need.
_PREFIXES = (
    (r"\be5\b.*\b(mistral|instruct)\b", "Instruct: TASK\nQuery: ", ""),
    (r"\be5\b", "query: ", " --passage-prefix 'passage: '"),
    (r"\bnomic-embed-text\b", "search_query: ", " --passage-prefix 'search_document: '"),
    (r"\bbge-\w+-en\b", "Represent this sentence for searching relevant passages: ", ""),
    (r"\bbge-\w+-zh\b", "为这个句子生成表示以用于检索相关文章：", ""),
    (r"\bdkrr\b", FID_PREFIX, f" --layout '{FID_LAYOUT}'"),
)
_NAMES = {
    # Trained by inner products, which sentence-transformers' folders of before 2024 do not state.
    # Its library compares by cosine then, which is right for all but these families.
    "dot": r"\b(dot|tas-b|dpr|ance|contriever|dragon)\b",
    "dpr": r"\bdpr\b",
    "tct-colbert": r"\btct[-_]colbert",
    "tower": r"(?<=.)\b(context|ctx|passage|query|question)[-_]encoder",  # of two
}


def _short_name(folder: Path) -> str:
    """The last part of a model's hub name, or of its folder, in lower case."""
    return Path(with_hub_names(str(folder))).name.lower()


def guess_prefixes(folder: Path, prompts: Iterable[str]) -> dict[str, str]:
    """A sentence about the prefixes that a model's card recommends, as the guess of "query_prefix";
    empty if it seems to need none.

    Args:
        folder: of the model, by whose name it is known.
        prompts: names of prompts in it, none of which is for questions or passages.

    Example:
        >>> guess_prefixes(Path("bge-m3"), [])
        {}
        >>> guess_prefixes(Path("e5-mistral-7b-instruct"), ["web_search_query"])
        {'query_prefix': 'no prefix is set; its prompts are web_search_query: --query-prefix NAME'}
    """
    names = ", ".join(prompts)
    if names:
        guess = f"no prefix is set; its prompts are {names}: --query-prefix NAME"
        return {"query_prefix": guess}
    for pattern, query, for_passages in _PREFIXES:
        if re.search(pattern, _short_name(folder)):
            options = f"--query-prefix {_quoted(query)}{for_passages}"
            return {"query_prefix": f"no prefix is set; models of its family need {options}"}
    return {}


def is_named(folder: Path, kind: str) -> bool:
    """Whether a model is of one of the kinds "dot", "dpr", "tct-colbert" and "tower" by its name.

    Example:
        >>> is_named(Path("msmarco-distilbert-base-tas-b"), "dot"), is_named(Path("LaBSE"), "dot")
        (True, False)
        >>> is_named(Path("dragon-plus-query-encoder"), "tower"), is_named(Path("query_encoder"), "tower")
        (True, False)
    """
    return re.search(_NAMES[kind], _short_name(folder)) is not None


def _quoted(text: str) -> str:
    """A text as a shell's word; a line break needs the shell's $'…'."""
    return f"${text!r}" if "\n" in text else f"'{text}'"
