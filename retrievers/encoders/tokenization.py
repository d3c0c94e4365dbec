"""Titles, texts and questions to token ids, without padding: how they are laid out, and the Rust
tokenizer of the model's folder.
"""

import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers

from rag.core.errors import ConfigError
from rag.core.types import Passage, Query
from rag.runtime.model_files import folder_tokenizer
from retrievers.encoders.folders import bert_rules, cut_side, transformer_settings
from retrievers.encoders.settings import (
    MASKS,
    PAIR,
    TCT_COLBERT,
    TCT_PASSAGE_MARKER,
    TCT_QUESTION_MARKER,
    TITLE_AND_TEXT,
    EncoderSettings,
)


class PassageLayout:
    """Either "pair", two segments `[CLS] title [SEP] text [SEP]`, or a template with {title} and
    {text}.

    A passage without a title is its text alone, whatever the layout.

    Args:
        pairs: whether the model reads two segments.

    Raises:
        ConfigError: the template has no {text} or names something else, or the model reads no
            pairs.

    Example:
        >>> PassageLayout("{title}. {text}").render(["Danube", ""], ["A river.", "A text."])
        (['Danube. A river.', 'A text.'], None)
        >>> PassageLayout("pair", pairs=True).render(["Danube"], ["A river."], prefix="passage: ")
        (['passage: Danube'], ['A river.'])
    """

    def __init__(self, layout: str, *, pairs: bool = False) -> None:
        self.layout = layout
        if layout == PAIR and pairs:
            return
        if layout == PAIR:
            raise ConfigError(
                f"passage layout {PAIR!r}: for this model a passage must be one text",
                hint=f"give a template such as {TITLE_AND_TEXT!r}",
            )
        try:
            fields = {field for _, field, _, _ in string.Formatter().parse(layout)} - {None}
        except ValueError as error:
            raise ConfigError(f"passage layout {layout!r}: {error}") from error
        if "text" not in fields or fields - {"title", "text"}:
            raise ConfigError(
                f"passage layout {layout!r}: expected {PAIR!r} or a template with {{text}} and {{title}}",
                hint=f"for example {TITLE_AND_TEXT!r}",
            )

    def render(
        self, titles: Sequence[str], texts: Sequence[str], *, prefix: str = ""
    ) -> tuple[list[str], list[str] | None]:
        """First and second segments; the second is None if there is only one segment.

        In a pair without a title the first segment is the text and the second is empty.
        """
        is_pair = self.layout == PAIR
        first = []
        second = []
        for title, text in zip(titles, texts, strict=True):
            if not title:
                first.append(prefix + text)
                second.append("")
            elif is_pair:
                first.append(prefix + title)
                second.append(text)
            else:
                first.append(prefix + self.layout.format(title=title, text=text))
        return first, second if is_pair else None

    def joined(self, passages: Sequence[Passage]) -> list[str]:
        """The only segments of passages, where the layout is a template."""
        titles = [passage.title for passage in passages]
        return self.render(titles, [passage.text for passage in passages])[0]


def render_queries(
    queries: Sequence[Query], *, prefix: str = "", straight_apostrophes: bool = False
) -> tuple[list[str], list[str]]:
    """First and second segments of queries, in training as in search: the question behind a prefix,
    and the texts of its passages, "" if there are none.

    The latest passage comes first: if a query is too long, the passages of the first hops are cut.

    Args:
        straight_apostrophes: put ' for ’ in questions, as DPR's code does.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering": how
        their released code reads questions; Xiong et al. 2021, "Answering Complex Open-Domain
        Questions with Multi-Hop Dense Retrieval": the second hop's query is the pair of the
        question and the first passage.

    Example:
        >>> from rag.core.types import Passage
        >>> second = Query("who’s?", (Passage("1", "Danube", "A river."), Passage("2", "Rhine", "Another.")))
        >>> render_queries([second, Query("where?")], straight_apostrophes=True)
        (["who's?", 'where?'], ['Another. A river.', ''])
    """
    first = []
    second = []
    for query in queries:
        question = query.question
        if straight_apostrophes:
            question = question.replace("’", "'")
        first.append(prefix + question)
        second.append(" ".join(passage.text for passage in reversed(query.passages)))
    return first, second


def query_texts(
    queries: Sequence[Query], *, prefix: str = "", straight_apostrophes: bool = False
) -> list[str]:
    """The segments of `render_queries` as one text each, for encoders that read no pairs."""
    rendered = render_queries(queries, prefix=prefix, straight_apostrophes=straight_apostrophes)
    return [f"{question} {context}".strip() for question, context in zip(*rendered, strict=True)]


class TextTokenizer:
    """Token ids of passages and questions, laid out and cut as an encoder's settings say.

    For encoders with one vector per token, questions get their padding. Padding and truncation that
    the tokenizer.json states are replaced: they belong to other uses.

    Args:
        settings: prefixes, layout and lengths, special tokens included.
        query_tokens: maximum length of a query with passages; None: as for questions.

    Attributes:
        cut: numbers of "passages" and of "questions" that were truncated so far.
        question_limit: maximum tokens of a question.

    Raises:
        ConfigError: the encoder has no such layout, or does not read that many tokens.
    """

    def __init__(self, settings: EncoderSettings, *, query_tokens: int | None = None) -> None:
        self.cut = Counter[str]()
        self._layout = PassageLayout(settings.layout, pairs=True)
        self._straight_apostrophes = settings.straight_apostrophes
        self._query_prefix = settings.query_prefix
        self._passage_prefix = settings.passage_prefix
        # TCT-ColBERT's texts have no [SEP], so its markers bring the [CLS] that stays.
        self._has_special_tokens = settings.pooling != TCT_COLBERT
        if not self._has_special_tokens:
            self._query_prefix = TCT_QUESTION_MARKER + settings.query_prefix
            self._passage_prefix = TCT_PASSAGE_MARKER + settings.passage_prefix
        fixed = settings.question_tokens
        self.question_limit = fixed or settings.max_length
        longest_query = fixed or settings.override(max_length=query_tokens).max_length
        cut_at = cache(partial(_cutting_tokenizer, settings))
        self._passages = cut_at(settings.max_length)
        self._questions = cut_at(self.question_limit)
        self._queries = cut_at(longest_query)
        self._fill = [mask_id(self._questions)] if settings.fills_questions else []

    def passages(self, titles: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
        """Token ids of passages, in order."""
        first, second = self._layout.render(titles, texts, prefix=self._passage_prefix)
        encodings = self._encode(self._passages, first, second)
        self.cut["passages"] += sum(bool(encoding.overflowing) for encoding in encodings)
        return [encoding.ids for encoding in encodings]

    def queries(self, queries: Sequence[Query]) -> list[list[int]]:
        """Token ids of questions, alone or with passages, in order; see `render_queries`."""
        first, second = render_queries(
            queries, prefix=self._query_prefix, straight_apostrophes=self._straight_apostrophes
        )
        encodings = self._encode(self._questions, first, second)
        if self._queries is not self._questions:
            longer = [number for number, query in enumerate(queries) if query.passages]
            questions = [first[number] for number in longer]
            contexts = [second[number] for number in longer]
            whole = self._encode(self._queries, questions, contexts)
            for number, encoding in zip(longer, whole, strict=True):
                encodings[number] = encoding
        token_ids = []
        for encoding, query in zip(encodings, queries, strict=True):
            if encoding.overflowing and not query.passages:
                self.cut["questions"] += 1
            filling = self._fill * (self.question_limit - len(encoding.ids))
            token_ids.append(encoding.ids + filling)
        return token_ids

    def _encode(
        self, tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None
    ) -> list[Any]:
        """Encodings of texts, or of pairs; a pair whose second segment is empty is one segment."""
        inputs: list[Any] = list(first)
        if second is not None:
            inputs = [(a, b) if b else a for a, b in zip(first, second, strict=True)]
        return tokenizer.encode_batch_fast(inputs, add_special_tokens=self._has_special_tokens)


def _cutting_tokenizer(settings: EncoderSettings, limit: int) -> Tokenizer:
    tokenizer = marked_tokenizer(settings)
    side = cut_side(settings.weights_dir)
    tokenizer.enable_truncation(limit, strategy="longest_first", direction=side)
    return tokenizer


def marked_tokenizer(settings: EncoderSettings) -> Tokenizer:
    """The tokenizer of an encoder, in which late interaction's markers stay whole."""
    tokenizer = open_tokenizer(settings.weights_dir)
    if settings.interaction is None or not settings.interaction.marked:
        return tokenizer
    for prefix in (settings.query_prefix, settings.passage_prefix):
        for marker in (prefix, prefix.partition(" ")[0]):
            if marker.strip() and tokenizer.token_to_id(marker) is not None:
                tokenizer.add_special_tokens([AddedToken(marker, normalized=False)])
                break
    return tokenizer


def counting_tokens(folder: Path) -> Callable[[str], int]:
    """Counts the tokens of a text, without special ones."""
    tokenizer = open_tokenizer(folder)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def mask_token(folder: Path) -> str:
    """The mask token of this model, as text; see `mask_id`."""
    tokenizer = open_tokenizer(folder)
    return str(tokenizer.id_to_token(mask_id(tokenizer)))


def mask_id(tokenizer: Tokenizer) -> int:
    """The mask token of a tokenizer."""
    for token in MASKS:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return token_id
    raise ConfigError(
        f"the tokenizer has no mask token, expected {' or '.join(MASKS)}",
        hint="use an encoder that was trained with masks",
    )


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of an encoder's folder, without padding and truncation.

    It lower-cases first where the folder of an old sentence-transformers says so, and BERT's
    normaliser does what tokenizer_config.json says, where tokenizer.json may say otherwise.
    """
    tokenizer = folder_tokenizer(folder)
    normalizer = tokenizer.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        for name, value in bert_rules(folder).items():
            setattr(normalizer, name, value)
    if transformer_settings(folder).get("do_lower_case"):
        steps = [normalizers.Lowercase()]
        if tokenizer.normalizer is not None:
            steps.append(tokenizer.normalizer)
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer
