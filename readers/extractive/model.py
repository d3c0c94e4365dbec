"""The network behind a reader, any encoder with heads for spans and passages, also fast."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.backbone import (
    attention_for,
    has_segments,
    load_backbone,
    load_network,
    loading,
    run_backbone,
)
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.hardware import core_pool, precisions
from rag.runtime.model_files import model_folder
from rag.training.precision import part

# transformers' networks take seconds to import, and reading on a CPU needs none of them.
if TYPE_CHECKING:
    from transformers import PreTrainedConfig
    from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead

MODERNBERT = "modernbert"
# Architectures whose class for question answering is the encoder and one linear layer, ModernBERT's
# with `span_transform` between them. Others do more: Longformer's gives the question's tokens global
# attention.
SPAN_TYPES = (
    "albert",
    "bart",
    "bert",
    "camembert",
    "convbert",
    "data2vec-text",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "mbart",
    "megatron-bert",
    "mobilebert",
    MODERNBERT,
    "mpnet",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roformer",
    "xlm-roberta",
    "xlm-roberta-xl",
)
_EXPECTED = "give a Hugging Face name, or a folder with config.json, weights and tokenizer files"


class Logits(NamedTuple):
    """Outputs of a network for R rows of L tokens, all float32.

    Attributes:
        start, end: (R, L) "the answer starts here", "ends here"; at [CLS] "the answer is not in
            this passage".
        relevance: (R,) "this passage holds the answer", if the network has such a head.
        words: (R, 2) "the answer is yes", "is no", on the scale of a start or end logit, if it has
            such a head.
    """

    start: Tensor
    end: Tensor
    relevance: Tensor | None = None
    words: Tensor | None = None


class LogitsModel(nn.Module):
    """A network that `ExtractiveReader` can run: tokens in; start, end and possibly further logits
    out.

    Attributes:
        depth: number of layers of the encoder.
        pool: threads that compute a batch each, of a network that would leave cores idle.
    """

    encoder: Any
    batch_tokens = 4096
    depth = 0
    pool: ThreadPoolExecutor | None = None

    def logits(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> Logits:
        """Logits of R rows from (R, L) int64 tensors."""
        return self(ids, mask, token_types)


def read_out(hidden: Tensor, first: Tensor, spans: nn.Linear, passage: nn.Linear | None) -> Logits:
    """Apply the heads of a `SpanModel` to (…, D) hidden states of tokens and (R, D) of [CLS]."""
    start, end = spans(hidden).unbind(-1)
    if passage is None:
        return Logits(start, end)
    logits = passage(first)  # (R, 3), or (R, 1)
    words = logits[:, 1:] if logits.shape[1] > 1 else None
    return Logits(start, end, logits[:, 0], words)


class SpanModel(LogitsModel):
    """Encoder plus two linear units per token: the logits of "the answer starts here" and "ends
    here".

    Heads always compute in fp32, whatever the encoder's dtype: span scores are sums of two logits
    and are compared across passages, where bf16's three decimal digits would make ties.

    Args:
        encoder: computes (R, L, D) hidden states.
        head: D → 2.
        transform: D → D on each token before `head`, where the architecture has one.
        passage_head: D → 3 on [CLS]: the passage holds the answer; the answer is yes; is no. D → 1
            in DPR's.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Linear,
        *,
        transform: nn.Module | None = None,
        passage_head: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.qa_outputs = head
        self.transform = transform
        self.passage_head = passage_head
        self.depth = int(getattr(encoder.config, "num_hidden_layers", 0))

    @classmethod
    def from_encoder(cls, folder: str | Path, seed: int = 0) -> SpanModel:
        """Load an encoder (`AutoModel`) from a folder or hub and add a randomly initialised head.

        Raises:
            ArtifactError: there is no loadable encoder.
        """
        encoder = load_backbone(model_folder(folder), train=True)
        transform = span_transform(encoder.config)
        if transform is not None:
            _drawn(transform.dense, seed + 3)
        head = _drawn(nn.Linear(encoder.config.hidden_size, 2), seed)
        return cls(encoder, head, transform=transform)

    def add_passage_head(self, seed: int) -> None:
        """Add a randomly initialised head for passages, "yes" and "no", if there is none."""
        if self.passage_head is None:
            head = nn.Linear(self.encoder.config.hidden_size, 3)
            self.passage_head = _drawn(head, seed + 1)

    def forward(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> Logits:
        """Logits of R rows of L tokens."""
        hidden = run_backbone(self.encoder, ids, mask, token_types).float()  # (R, L, D)
        tokens = hidden if self.transform is None else self.transform(hidden)
        return read_out(tokens, hidden[:, 0], self.qa_outputs, self.passage_head)

    def to_compute(self, dtype: torch.dtype) -> SpanModel:
        """Move the encoder to `dtype`; heads stay fp32. Returns self."""
        self.encoder.to(dtype)
        return self


def load_question_answering(folder: Path, config: PreTrainedConfig) -> SpanModel:
    """Any `AutoModelForQuestionAnswering` checkpoint whose head is one linear layer `qa_outputs`, or
    ModernBERT's.

    Raises:
        ArtifactError: if it cannot be loaded, or has another kind of head.
    """
    if config.model_type not in SPAN_TYPES:
        raise ArtifactError(
            f"{folder} is a {config.model_type} for question answering, whose spans are computed "
            f"otherwise than here; expected {', '.join(SPAN_TYPES)}",
            hint="use one of these, for example deepset/roberta-base-squad2",
        )
    from transformers import AutoModelForQuestionAnswering

    with loading(f"{folder}: no question answering model could be loaded", hint=_EXPECTED):
        network, _ = load_network(
            AutoModelForQuestionAnswering,
            folder,
            config,
            attn_implementation=attention_for(config),
            dtype=torch.float32,
        )
    model: Any = network
    is_modern = config.model_type == MODERNBERT
    head = model.classifier if is_modern else model.qa_outputs
    # The configuration may state another number: BART's class has two outputs in any case.
    if head.out_features != 2:
        raise ArtifactError(
            f"{folder} has {head.out_features} outputs a token, expected a start and an end",
            hint="use another, for example deepset/roberta-base-squad2",
        )
    if is_modern:
        return SpanModel(model.model, head, transform=model.head).eval()
    return SpanModel(model.base_model, head).eval()


def span_transform(config: PreTrainedConfig) -> ModernBertPredictionHead | None:
    """What stands between the encoder and the span head of an architecture; None: nothing."""
    if config.model_type != MODERNBERT:
        return None
    from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead

    return ModernBertPredictionHead(config)


def load_dpr(folder: Path, config: PreTrainedConfig) -> SpanModel:
    """A `DPRReader` checkpoint such as `facebook/dpr-reader-single-nq-base`, which selects
    passages.

    Raises:
        ArtifactError: if it cannot be loaded.
    """
    from transformers import BertConfig, DPRReader

    with loading(f"{folder}: no DPR reader could be loaded", hint=_EXPECTED):
        reader, _ = load_network(DPRReader, folder, config, dtype=torch.float32)
    predictor = reader.span_predictor
    encoder = predictor.encoder.bert_model
    # Its segments are not used, as in the published checkpoints' class.
    bert_config = {**encoder.config.to_dict(), "type_vocab_size": 1}
    del bert_config["model_type"]
    encoder.config = BertConfig.from_dict(bert_config)
    segments = encoder.embeddings.token_type_embeddings
    segments.weight.data = segments.weight.data[:1]
    return SpanModel(encoder, predictor.qa_outputs, passage_head=predictor.qa_classifier).eval()


@dataclass(frozen=True)
class SpanWeights:
    """The weights of a `SpanModel` without the network: fp32 tensors `encoder.…`, `qa_outputs.…`,
    ….
    """

    config: PreTrainedConfig
    state: Mapping[str, Tensor]

    @property
    def encoder(self) -> dict[str, Tensor]:
        """The encoder's weights, under its own names."""
        return part(self.state, "encoder")

    def layer(self, name: str) -> nn.Linear | None:
        """The linear layer of this name, if there is one."""
        weight = self.state.get(f"{name}.weight")
        if weight is None:
            return None
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": self.state[f"{name}.bias"]})
        return layer.eval()

    def network(self) -> SpanModel:
        """The network, in evaluation mode.

        Raises:
            ArtifactError: tensors are missing, unknown, or of another shape.
        """
        from transformers import AutoModel

        encoder = AutoModel.from_config(self.config, attn_implementation=attention_for(self.config))
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
        model = SpanModel(
            encoder,
            nn.Linear(self.config.hidden_size, 2),
            transform=span_transform(self.config),
            passage_head=self.layer("passage_head"),
        )
        try:
            model.load_state_dict(self.state, strict=True)
        except RuntimeError as error:
            raise ArtifactError(f"the weights do not fit the configuration: {error}") from error
        return model.eval()


def _drawn(layer: nn.Linear, seed: int) -> nn.Linear:
    """The layer, with random weights."""
    nn.init.normal_(layer.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class FastSpanModel(LogitsModel):
    """A `SpanModel` in evaluation mode, computed with `rag.runtime.fast.fast_bert`.

    Args:
        weights: of a BERT-like network; they are copied.
        precision: of matrix products; the head and the residual stream are fp32. "fp32"; "bf16";
            "int8" for the linear layers, with attention in bf16 where the hardware has it; or
            "auto", the fastest of these on this machine.
        ranges: ranges of the encoder's activations, which "int8" needs; without them "auto" is bf16
            or fp32.

    Raises:
        ConfigError: "int8" without ranges, "int8" or "bf16" on a CPU that lacks it, or an unknown
            name.
        ArtifactError: the weights do not fit the configuration.
    """

    batch_tokens = 1024  # that one core works on at a time; more do not fit its cache

    def __init__(
        self, weights: SpanWeights, precision: str, ranges: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        spans = weights.layer("qa_outputs")
        if spans is None:
            raise ArtifactError("the weights do not fit the configuration: qa_outputs is missing")
        self.encoder = _encoder(weights, precision, ranges)
        self._spans = spans
        self._passage = weights.layer("passage_head")
        self.depth = self.encoder.depth
        self._is_segmented = has_segments(weights.config)
        self.pool = core_pool()

    def logits(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> Logits:
        """Logits, 0 at padding; rows must be padded on the right."""
        mask = mask.bool()
        lengths = mask.sum(1)  # (R,)
        # The tokens of all rows, end to end.
        hidden = self.encoder.embed(ids, mask, token_types if self._is_segmented else None)
        hidden = self.encoder.layers(hidden, lengths.tolist())  # (T, D)
        first = hidden[lengths.cumsum(0) - lengths]
        logits = read_out(hidden, first, self._spans, self._passage)
        start, end = torch.zeros((2, *mask.shape))
        start[mask] = logits.start
        end[mask] = logits.end
        return logits._replace(start=start, end=end)


def _encoder(weights: SpanWeights, precision: str, ranges: Mapping[str, Tensor] | None) -> FastBert:
    table = precisions()
    if precision == "auto" and ranges is not None and table.get("int8"):
        precision = "int8"
    if precision != "int8":
        return FastBert(weights.encoder, weights.config, precision=precision)
    if ranges is None:
        raise ConfigError(
            "this reader has no ranges of activations, which int8 inference needs",
            hint="use auto, bf16 or fp32; `rag train reader` measures ranges for the reader it writes",
        )
    if "int8" not in table:
        raise ConfigError(
            "precision is int8, and this CPU has no AVX2 instructions",
            hint="use auto, which is the fastest that works here",
        )
    return FastBert(weights.encoder, weights.config, precision="auto", ranges=ranges)
