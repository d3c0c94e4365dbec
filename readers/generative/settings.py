"""A generative reader's settings, which stand in its folder's `reader.json`, and the rows that they
make.
"""

from collections.abc import Sequence
from string import Formatter
from typing import Any, Literal

from pydantic import Field, field_validator

from rag.config import Config
from readers.manifest import Manifest
from readers.protocols import PassageLists

Marginal = Literal["sequence", "token"]
FID_TEMPLATE = "question: {question} title: {title} context: {text}"
_FIELDS = frozenset({"question", "title", "text"})


class GeneratorSettings(Config):
    """How passages are laid out and answers are generated.

    Attributes:
        mode: "fid" encodes passages apart and decodes from all of them together; "rag-sequence" and
            "rag-token" read passages apart, and all of them together say how likely an answer is
            (`readers.generative.marginal`).
        template: an input row; names in braces are filled in. The tokenizer's special tokens may be
            written out.
        prompt_end: text between the input and the answer of a decoder-only model, which is never
            truncated: the head of a chat's reply, or "Answer:"; "" for encoder–decoders.
        passage_tokens: maximum input length, special tokens included; longer inputs are truncated
            at the end, as published.
        question_tokens: maximum question length; longer questions are truncated.
        lower_case: whether questions are lower-cased, as RAG's published generators got them.
        answer_tokens: maximum answer length.
        max_passages: number of best-ranked passages that are read.
        beams: 1 is greedy; each beam gives a candidate answer.
        no_answer: text that the model was trained to generate where the passages have no answer;
            None if it was not trained on such questions.
        prior_scale: factor on retrieval scores, whose softmax is then p(z|x), in the modes of RAG.
        batch_tokens: tokens that are encoded at a time.
    """

    mode: Literal["fid", "rag-sequence", "rag-token"] = "fid"
    template: str = FID_TEMPLATE
    prompt_end: str = ""
    passage_tokens: int = Field(default=250, ge=8)
    question_tokens: int = Field(default=64, ge=1)
    lower_case: bool = False
    answer_tokens: int = Field(default=50, ge=1)
    max_passages: int = Field(default=100, ge=1)
    beams: int = Field(default=1, ge=1, le=64)
    no_answer: str | None = None
    prior_scale: float = Field(default=1.0, gt=0)
    batch_tokens: int = Field(default=8192, ge=1)

    @property
    def marginal(self) -> Marginal | None:
        """Kind of marginalisation in the modes of RAG, else None."""
        if self.mode == "fid":
            return None
        return "sequence" if self.mode == "rag-sequence" else "token"

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        fields = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        if not {"question", "text"} <= fields <= _FIELDS:
            raise ValueError(
                f"names {{{'}, {'.join(sorted(fields))}}}, expected {{question}}, {{text}}, perhaps {{title}}"
            )
        return template


def as_literal(text: str) -> str:
    """A text for a template that keeps its braces.

    Example:
        >>> as_literal("a {b}")
        'a {{b}}'
    """
    return text.replace("{", "{{").replace("}", "}}")


class GeneratorManifest(Manifest):
    """The content of `reader.json` beside a sequence-to-sequence or causal checkpoint."""

    kind: Literal["generative"] = "generative"
    settings: GeneratorSettings = GeneratorSettings()


def encode_rows(
    tokenizer: Any, settings: GeneratorSettings, questions: Sequence[str], passages: PassageLists
) -> list[list[list[int]]]:
    """Token ids of every passage of every question; rows over `passage_tokens` are cut at their
    end.

    Special tokens that the template contains (such as "[SEP]") become these tokens; the tokenizer
    adds its usual special tokens around rows.
    """
    texts = []
    for question, read in zip(questions, passages, strict=True):
        shortened = question.lower() if settings.lower_case else question
        shortened = _cut(tokenizer, shortened, settings.question_tokens)
        for passage in read:
            texts.append(
                settings.template.format(question=shortened, title=passage.title, text=passage.text)
            )
    rows: list[list[int]] = []
    if texts:
        limit = settings.passage_tokens
        encoded = tokenizer(texts, truncation=True, max_length=limit, verbose=False)
        rows = list(map(list, encoded["input_ids"]))
    results = []
    begin = 0
    for read in passages:
        results.append(rows[begin : begin + len(read)])
        begin += len(read)
    return results


def _cut(tokenizer: Any, question: str, tokens: int) -> str:
    """The question, or as much of its beginning as `tokens` tokens hold."""
    if len(question) <= tokens:
        return question
    ids = tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"]
    return question if len(ids) <= tokens else str(tokenizer.decode(ids[:tokens]))
