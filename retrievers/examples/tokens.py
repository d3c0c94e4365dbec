"""Questions and passages as token ids, in the layout that the finished encoder will use."""

from collections.abc import Sequence

from rag.core.types import Passage, Query
from retrievers.encoders.layout import PassageLayout
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import TextTokenizer


class RetrieverTokenizer:
    """Turns questions and passages into token ids.

    Args:
        question_settings, passage_settings: prefixes, layout and lengths in use.
        query_tokens: maximum length of a query with passages, special tokens included; None: as for
            questions.

    Example:
        >>> settings = read_settings(model_folder(None)).override(max_length=16)       # doctest: +SKIP
        >>> river = Passage("1", "Danube", "A river.")                                 # doctest: +SKIP
        >>> RetrieverTokenizer(settings, settings).passages([river])                   # doctest: +SKIP
        [[101, 15709, 1037, 2314, 1012, 102]]
    """

    def __init__(
        self,
        question_settings: EncoderSettings,
        passage_settings: EncoderSettings,
        *,
        query_tokens: int | None = None,
    ) -> None:
        self._query_prefix = question_settings.query_prefix
        self._passage_prefix = passage_settings.passage_prefix
        self._layout = PassageLayout(passage_settings.layout)
        self._questions = TextTokenizer(question_settings)
        self._queries = TextTokenizer(question_settings.override(max_length=query_tokens))
        self._passages = TextTokenizer(passage_settings)

    def queries(self, queries: Sequence[Query]) -> list[list[int]]:
        """Token ids of questions, alone or with passages, in order."""
        ids = self._questions.queries(queries, self._query_prefix)
        longer = [number for number, query in enumerate(queries) if query.passages]
        whole = self._queries.queries([queries[number] for number in longer], self._query_prefix)
        for number, sequence in zip(longer, whole, strict=True):
            ids[number] = sequence
        return ids

    def passages(self, passages: Sequence[Passage]) -> list[list[int]]:
        """Token ids of passages, in order."""
        titles, texts = [p.title for p in passages], [p.text for p in passages]
        return self._passages(*self._layout.render(titles, texts, prefix=self._passage_prefix))
