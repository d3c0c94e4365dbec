"""The settings of an encoder: how texts become vectors, and where the weights are.

`retrievers.encoders.folders` reads them from a folder. Neither imports torch.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from indexers.protocols import EncoderIdentity
from rag.core.errors import ArtifactError, ConfigError, with_hub_names
from rag.core.log import get_logger
from rag.runtime.model_files import (
    folder_tokenizer,
    position_limit,
    read_config,
    tokenizer_files,
    weight_files,
    weight_shapes,
    weights_sha256,
)

PAIR = "pair"
"""The layout of title and text in two segments."""

TITLE_AND_TEXT = "{title} {text}"
"""The usual layout."""

FID_PREFIX = "question: "
FID_LAYOUT = "title: {title} context: {text}"
"""How the retriever of Fusion-in-Decoder reads questions and passages.

Source: Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question Answering",
and its published code.
"""

TOKENS = "tokens"
"""The pooling of late interaction: a vector per token."""

TCT_COLBERT = "tct-colbert"
"""The pooling of TCT-ColBERT, and its way to read texts: a marker and no [SEP], questions filled with
masks that count, and the mean of what follows the marker. No folder states any of it.

Source: Lin et al. 2021, "In-Batch Negatives for Knowledge Distillation with Tightly-Coupled Teachers
for Dense Retrieval", and the authors' encoders in Pyserini.
"""
TCT_QUESTION_MARKER = "[CLS] [Q] "
TCT_PASSAGE_MARKER = "[CLS] [D] "
TCT_MARKER_TOKENS = 4  # [CLS], the bracket, its letter, the bracket
TCT_QUESTION_TOKENS = 36

POOLINGS = ("cls", "mean", "lasttoken", TOKENS, TCT_COLBERT)
"""The poolings of networks; see `rag.runtime.backbone.pool`."""

STATIC = "static"
"""The pooling of static encoders, which have a vector per token and no network."""

STATIC_LENGTH = 512
"""Tokens that count of static encoders trained here: the mean of more says little."""

SERVED = "served"
"""The pooling of a model behind an address, which is the server's affair."""

SERVED_LENGTH = 384
"""Tokens of a passage for a model behind an address, which does not say how many it reads: fewer than
the 512 of most, since they are counted by another tokenizer."""

NO_LIMIT = 1 << 20
"""More tokens than any text has; tokenizers write absurd lengths for "no limit"."""

MASKS = ("[MASK]", "<mask>")
COLBERT_MARKERS = {"query_prefix": "[unused0]", "passage_prefix": "[unused1]"}


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A layer behind the transformer: a linear one with an activation of torch.nn, or a LayerNorm.

    Attributes:
        weight: name of its weight in the weights file of `folder`; its bias, if any, is beside it.
    """

    kind: Literal["linear", "norm"]
    folder: Path
    weight: str
    activation: str = "Identity"


@dataclass(frozen=True, slots=True)
class Interaction:
    """The settings of late interaction; markers of questions and passages are their prefixes.

    Attributes:
        query_tokens: maximum question length, marker and special tokens included; the rest is
            truncated.
        expanded: pad shorter questions with [MASK] tokens, whose vectors count like the others.
        attended: all tokens see those masks; otherwise only the masks' own vectors depend on them.
        skipped: tokens of passages that are read, but whose vectors are left out.
        marked: prefixes begin with a token of the vocabulary that the tokenizer would take apart.

    Source:
        Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via
        Contextualized Late Interaction over BERT", section 3.2.

    Example:
        >>> Interaction(24, skipped=(".",)).describe()
        'questions of 24 tokens, filled with masks that are not seen; passages without .'
    """

    query_tokens: int = 32
    expanded: bool = True
    attended: bool = False
    skipped: tuple[str, ...] = tuple(string.punctuation)
    marked: bool = True

    def describe(self) -> str:
        """A description; two encoders with equal descriptions and weights make the same vectors."""
        text = f"questions of {self.query_tokens} tokens"
        if self.expanded:
            text += f", filled with masks that are {'' if self.attended else 'not '}seen"
        text += "; passages"
        if self.skipped:
            text += f" without {''.join(self.skipped)}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    """How texts become vectors, and where the weights are; what an encoder's folder records.

    Attributes:
        kind: "sentence-transformers", "dpr", "ance", "fid", "transformers", "static" or "served".
        weights_dir: folder of config.json and model.safetensors.
        pooling: one of `POOLINGS`, `STATIC` or `SERVED`.
        normalize: whether vectors get unit length.
        max_length: tokens after which texts are cut, special tokens included.
        layout: see `PassageLayout`.
        query_prefix: put before every question.
        passage_prefix: put before every passage.
        on_tokens: whether the head's layers are applied to every token, before pooling.
        interaction: settings of late interaction; given if and only if `pooling` is "tokens".
        layers: layers of the head, in order.
        tower: "passage" or "question" where the folder states which tower of two it holds.
        straight_apostrophes: questions are read with ' for ’, as in training.
        skips_unknown: a static encoder leaves tokens out that its vocabulary lacks.
        prompts: the folder's prompts by name; a prefix can be set to such a name.
        guesses: setting → a sentence about what the folder does not state and was guessed.
    """

    kind: str
    weights_dir: Path
    pooling: str
    normalize: bool
    max_length: int
    layout: str = TITLE_AND_TEXT
    query_prefix: str = ""
    passage_prefix: str = ""
    on_tokens: bool = False
    interaction: Interaction | None = None
    layers: tuple[HeadLayer, ...] = ()
    tower: str = ""
    straight_apostrophes: bool = False
    skips_unknown: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    guesses: Mapping[str, str] = field(default_factory=dict)

    @property
    def guessed(self) -> str:
        """One line about everything that was guessed, or ""."""
        if not self.guesses:
            return ""
        name = with_hub_names(str(self.weights_dir))
        return f"{name} does not state all settings: {'; '.join(self.guesses.values())}"

    @property
    def similarity(self) -> str:
        """ "dot", "cosine", or "maxsim" for several vectors per text."""
        if self.pooling == TOKENS:
            return "maxsim"
        return "cosine" if self.normalize else "dot"

    @property
    def question_tokens(self) -> int | None:
        """The length that every question is cut to; None: it may be as long as a passage."""
        if self.pooling == TCT_COLBERT:
            return TCT_QUESTION_TOKENS
        return None if self.interaction is None else self.interaction.query_tokens

    @property
    def fills_questions(self) -> bool:
        """Whether shorter questions are filled with masks up to `question_tokens`."""
        is_expanded = self.interaction is not None and self.interaction.expanded
        return is_expanded or self.pooling == TCT_COLBERT

    @property
    def dim(self) -> int:
        """Size D of the vectors, read from the configuration and the headers of weight files
        alone.
        """
        if self.pooling == STATIC:
            shapes = weight_shapes(self.weights_dir)
            return shapes.get("embedding.weight", shapes.get("embeddings", (0, 0)))[1]
        if self.layers:
            last = self.layers[-1]
            shapes = weight_shapes(last.folder)
            if last.weight not in shapes:
                raise ArtifactError(
                    f"{last.folder} has no {last.weight}", hint="copy or download it again"
                )
            return shapes[last.weight][0]
        config = read_config(self.weights_dir)
        names = ("hidden_size", "dim", "d_model", "n_embd")
        return int(next(filter(None, map(config.get, names))))

    def max_length_limit(self) -> int:
        """Maximum number of tokens that the position embeddings allow."""
        if self.pooling in (STATIC, SERVED):
            return NO_LIMIT
        return position_limit(read_config(self.weights_dir))

    def override(self, **changes: Any) -> EncoderSettings:
        """A copy with the changes that are neither None nor "auto"; `query_tokens` is one of
        `interaction`.

        Raises:
            ConfigError: a value that this encoder does not take.
        """
        changed = {name: value for name, value in changes.items() if value not in (None, "auto")}
        guesses = {name: text for name, text in self.guesses.items() if name not in changed}
        query_tokens = changed.pop("query_tokens", None)
        for name in COLBERT_MARKERS:
            if name in changed:
                changed[name] = self.prompts.get(changed[name], changed[name])
        pooling = changed.get("pooling", self.pooling)
        self._check(pooling, changed.get("max_length"))
        if pooling != TOKENS:
            return replace(self, **changed, guesses=guesses, interaction=None)
        interaction = self.interaction or Interaction()
        if query_tokens:
            interaction = replace(interaction, query_tokens=query_tokens)
        if self.interaction is None:
            self._add_markers(changed)
        changed.setdefault("normalize", self.normalize or self.pooling != TOKENS)
        return replace(self, **changed, guesses=guesses, interaction=interaction)

    def _check(self, pooling: str, max_length: int | None) -> None:
        """Refuse a pooling or a length that this encoder does not have."""
        allowed = POOLINGS if self.pooling in POOLINGS else (self.pooling,)
        if pooling not in allowed:
            raise ConfigError(f"pooling is {pooling!r}, expected one of {', '.join(allowed)}")
        if max_length is None:
            return
        limit = self.max_length_limit()
        if not 2 <= max_length <= limit:
            raise ConfigError(
                f"max_length is {max_length}, this encoder takes 2 to {limit}",
                hint="in training it is passage_tokens, question_tokens or query_tokens",
            )

    def _add_markers(self, changed: dict[str, Any]) -> None:
        """Set ColBERT's markers as prefixes where none is stated and the vocabulary has them."""
        vocabulary = folder_tokenizer(self.weights_dir).get_vocab()
        if all(marker in vocabulary for marker in COLBERT_MARKERS.values()):
            for name, marker in COLBERT_MARKERS.items():
                changed[name] = changed.get(name) or f"{marker} "

    def identity(self, name: str, question: EncoderSettings | None = None) -> EncoderIdentity:
        """The identity of an encoder of this passage tower, and this question tower if it is
        another.
        """
        question = question or self
        tokenizers: list[Path] = []
        folders: list[Path] = []
        for side in (self, question):
            tokenizers += tokenizer_files(side.weights_dir)
            folders += [side.weights_dir, *(layer.folder for layer in side.layers)]
        weights = chain.from_iterable(map(weight_files, dict.fromkeys(folders)))
        return EncoderIdentity(
            name=name,
            weights_sha256=weights_sha256(weights),
            tokenizer_sha256=weights_sha256(dict.fromkeys(tokenizers)),
            dim=self.dim,
            pooling=self.pooling,
            normalize=self.normalize,
            query_prefix=question.query_prefix,
            passage_prefix=self.passage_prefix,
            max_length=self.max_length,
            similarity=self.similarity,
            layout=self.layout,
            interaction=self.interaction.describe() if self.interaction else "",
        )


def findable_name(name: str) -> str:
    """A name that loads the model from any working directory."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def warn_of_guesses(*sides: EncoderSettings) -> None:
    """Say in one line for each tower what its folder does not state and was guessed."""
    for guessed in dict.fromkeys(settings.guessed for settings in sides):
        if guessed:
            get_logger(__name__).warning("%s", guessed)
