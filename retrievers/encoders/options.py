"""What a user states about an encoder, quick to import, so that a command's help can show it."""

from typing import Literal

from pydantic import Field

from rag.config import Config


class EncoderOptions(Config):
    """How an encoder reads texts and makes vectors, in place of what its folder states.

    They become part of the encoder's identity, which an index records: `rag ask --index` needs
    none of them.

    Attributes:
        pooling: how token vectors become the vector of a text; "tct-colbert" is how TCT-ColBERT
            reads texts, too.
        normalize: unit vectors, compared by cosine; without, by inner product. Default: the
            encoder's.
        max_length: most tokens per passage; default: the encoder's.
        query_prefix: put before every question: a text, or the name of a prompt in the encoder's
            folder; default: the encoder's.
        passage_prefix: the same for passages.
        layout: how a passage is read: "pair" (title and text in two segments), or a template such
            as "{title}. {text}".

    Example:
        >>> EncoderOptions(normalize=False, pooling="cls").arguments
        {'pooling': 'cls', 'normalize': False}
    """

    pooling: Literal["auto", "cls", "mean", "lasttoken", "tct-colbert"] = "auto"
    normalize: bool | None = None
    max_length: int | None = Field(default=None, ge=1)
    query_prefix: str | None = None
    passage_prefix: str | None = None
    layout: str | None = None

    @property
    def arguments(self) -> dict[str, object]:
        """The options that were given, as `BiEncoder.load` takes them."""
        return {name: value for name, value in self if value not in (None, "auto")}
