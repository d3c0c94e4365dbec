"""The networks behind a reader: a span head on any encoder, and DPR's reader with passage selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForQuestionAnswering, DPRReader, PreTrainedConfig

from rag.core.errors import ArtifactError
from rag.runtime.attention import register_math_attention

__all__ = [
    "DprModel",
    "LogitsModel",
    "SpanModel",
    "load_dpr",
    "load_question_answering",
    "longest_row",
    "span_model_from_state",
]

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")
_LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError)

Item = TypeVar("Item")
Result = TypeVar("Result")
Logits = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


class LogitsModel(nn.Module):
    """What `ExtractiveReader` runs: tokens in; start and end logits and perhaps a passage logit out."""

    selects_passages = False
    batch_tokens = 4096

    @property
    def workers(self) -> int:
        """How many items `map` works on at a time."""
        return 1

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` over `items`, in order; networks that leave cores idle run several items at once."""
        return map(function, items)

    def close(self) -> None:
        """Release threads, if the network has any of its own."""

    def to_compute(self, dtype: torch.dtype) -> LogitsModel:
        """Move the encoder to `dtype`; heads stay fp32. Returns self."""
        raise NotImplementedError

    def logits(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_types: torch.Tensor
    ) -> Logits:
        """(R, L) start and end logits and (R,) passage logits or None, all float32."""
        raise NotImplementedError


class SpanModel(LogitsModel):
    """Encoder plus two linear units per token: the logits of "the answer starts here" and "ends here".

    The head always computes in fp32, whatever dtype the encoder has: span scores are sums of two logits and
        are
    compared across passages, where bf16's three decimal digits would make ties.
    """

    def __init__(self, encoder: nn.Module, head: nn.Linear, *, segments: int = 2) -> None:
        super().__init__()
        self.encoder = encoder
        self.qa_outputs = head
        self.segments = segments

    @classmethod
    def from_encoder(cls, folder: str | Path, *, seed: int = 0, dropout: float | None = None) -> SpanModel:
        """Load an encoder (`AutoModel`) and add a freshly drawn head.

        Args:
            folder: Hugging Face name or local folder.
            seed: of the head's weights.
            dropout: replaces the configuration's dropout probabilities, if given.

        Raises:
            ArtifactError: if the folder holds no loadable encoder.
        """
        try:
            config = AutoConfig.from_pretrained(folder)
            for name in _DROPOUTS:
                if dropout is not None and hasattr(config, name):
                    setattr(config, name, dropout)
            encoder = AutoModel.from_pretrained(
                folder, config=config, attn_implementation=_attention(config), dtype=torch.float32
            )
        except _LOADING_ERRORS as error:
            raise _unloadable(folder, "encoder", error) from error
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
        head = nn.Linear(config.hidden_size, 2)
        with torch.no_grad():
            drawn = torch.empty_like(head.weight)
            head.weight.copy_(drawn.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed)))
            head.bias.zero_()
        return cls(encoder, head, segments=_segments(config))

    def to_compute(self, dtype: torch.dtype) -> SpanModel:
        """Move the encoder to `dtype`; the head stays fp32. Returns self."""
        self.encoder.to(dtype)
        return self

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_types: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Start and end logits, each (R, L) float32, of R rows of L tokens."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.segments > 1:
            inputs["token_type_ids"] = token_types
        hidden = self.encoder(**inputs)[0]  # (R, L, D)
        logits = self.qa_outputs(hidden.float())  # (R, L, 2)
        return logits[..., 0], logits[..., 1]

    def logits(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_types: torch.Tensor
    ) -> Logits:
        """Start and end logits; no passage logits."""
        return (*self(input_ids, attention_mask, token_types), None)


class DprModel(LogitsModel):
    """DPR's extractive reader: span logits and a passage selection logit on [CLS]."""

    selects_passages = True

    def __init__(self, model: DPRReader) -> None:
        super().__init__()
        self.model = model

    def to_compute(self, dtype: torch.dtype) -> DprModel:
        """Move the encoder to `dtype`; both heads stay fp32. Returns self."""
        self.model.span_predictor.encoder.to(dtype)
        return self

    def logits(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_types: torch.Tensor
    ) -> Logits:
        """Start, end and selection logits. Segments are not used, as in the published checkpoints' class."""
        predictor = self.model.span_predictor
        hidden = predictor.encoder(input_ids, attention_mask=attention_mask)[0].float()  # (R, L, D)
        spans = predictor.qa_outputs(hidden)  # (R, L, 2)
        selected = predictor.qa_classifier(hidden[:, 0]).squeeze(-1)  # (R,)
        return spans[..., 0], spans[..., 1], selected


def load_question_answering(folder: str | Path) -> SpanModel:
    """Any `AutoModelForQuestionAnswering` checkpoint whose head is one linear layer `qa_outputs`.

    Raises:
        ArtifactError: if it cannot be loaded, or has another kind of head.
    """
    try:
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForQuestionAnswering.from_pretrained(
            folder, config=config, attn_implementation=_attention(config), dtype=torch.float32
        )
    except _LOADING_ERRORS as error:
        raise _unloadable(folder, "question answering model", error) from error
    head = getattr(model, "qa_outputs", None)
    encoder = getattr(model, model.base_model_prefix, None)
    if not isinstance(head, nn.Linear) or head.out_features != 2 or encoder is None:
        raise ArtifactError(
            f"{folder}: {type(model).__name__} has no linear span head `qa_outputs`",
            hint="use a BERT-like question answering checkpoint",
        )
    return SpanModel(encoder, head, segments=_segments(config)).eval()


def load_dpr(folder: str | Path) -> DprModel:
    """A `DPRReader` checkpoint such as `facebook/dpr-reader-single-nq-base`.

    Raises:
        ArtifactError: if it cannot be loaded.
    """
    try:
        config = AutoConfig.from_pretrained(folder)
        model = DPRReader.from_pretrained(folder, config=config, dtype=torch.float32)
    except _LOADING_ERRORS as error:
        raise _unloadable(folder, "DPR reader", error) from error
    return DprModel(model).eval()


def span_model_from_state(config: PreTrainedConfig, state: dict[str, torch.Tensor]) -> SpanModel:
    """Build a `SpanModel` from a configuration and fp32 tensors named `encoder.…` and `qa_outputs.…`.

    Raises:
        ArtifactError: if tensors are missing, unknown, or of another shape.
    """
    encoder = AutoModel.from_config(config, attn_implementation=_attention(config))
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    model = SpanModel(encoder, nn.Linear(config.hidden_size, 2), segments=_segments(config))
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ArtifactError(f"the weights do not fit the configuration: {error}") from error
    return model.eval()


def longest_row(config: Any) -> int:
    """Most tokens a row may have: the positions the encoder knows."""
    longest = int(getattr(config, "max_position_embeddings", 512) or 512)
    if config.model_type in ("roberta", "camembert", "xlm-roberta"):
        return longest - int(config.pad_token_id) - 1  # positions start after the padding index
    return longest


def _attention(config: Any) -> str:
    """The math attention for BERT-like models; the others keep transformers' own choice of masks."""
    known = {"bert", "roberta", "electra", "xlm-roberta", "camembert"}
    return register_math_attention() if config.model_type in known else "sdpa"


def _segments(config: Any) -> int:
    return int(getattr(config, "type_vocab_size", 0) or 0)


def _unloadable(folder: str | Path, kind: str, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"{folder}: no {kind} could be loaded ({error})",
        hint="give a Hugging Face name, or a folder with config.json, model.safetensors and tokenizer files",
    )
