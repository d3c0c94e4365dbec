"""Cross-encoders read question and passage together: slower than comparing vectors, and more
accurate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rag.core.arrays import Float32
from rag.core.errors import ArtifactError
from rag.core.files import read_json
from rag.core.types import Passage
from rag.runtime.backbone import (
    attention_for,
    load_network,
    loading,
    run_by_length,
    set_dropout,
    transformers_config,
)
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.hardware import resolve_device, resolve_precision
from rag.runtime.model_files import (
    model_folder,
    position_limit,
    read_config,
    transformers_tokenizer,
)
from retrievers.encoders.folders import LIBRARY_FILE, tokenizer_limit, transformer_settings
from retrievers.encoders.settings import TITLE_AND_TEXT
from retrievers.encoders.tokenization import PassageLayout

_BATCH_LIMITS = (64, 8192)  # pairs and tokens per forward pass
# Kinds of networks whose heads take hidden states as `_PackedBase` gives them.
_FAST = ("bert", "roberta", "xlm-roberta")
_LAYOUT_KEY = "passage_layout"  # key of config.json: the layout of training
_EXAMPLE = "cross-encoder/ms-marco-MiniLM-L6-v2"


@dataclass(eq=False)
class CrossEncoder:
    """Scores how relevant passages are to questions, to re-rank them. Made by `load`.

    Attributes:
        name: folder or hub name it came from.
        network: transformers model with one output, or two, of which the second is for "relevant".
        tokenizer: of its folder.
        max_length: tokens after which a pair is cut, the longer text first.
        layout: layout of a passage, which is the second segment.
        prompt: put before every question.
    """

    name: str
    network: Any
    tokenizer: Any
    max_length: int
    layout: PassageLayout
    prompt: str

    is_log_odds = True

    @classmethod
    def load(
        cls,
        name_or_path: str | Path | None,
        *,
        device: str = "auto",
        precision: str = "auto",
        max_length: int | None = None,
        layout: str | None = None,
        train: bool = False,
        dropout: float | None = None,
        seed: int = 0,
    ) -> CrossEncoder:
        """Load a sequence-classification model, or make one of an encoder, to be trained.

        Args:
            name_or_path: folder or Hugging Face name, such as cross-encoder/ms-marco-MiniLM-L6-v2;
                None is the embedded encoder.
            device: "auto", "cpu" or "cuda"; a network to be trained is returned on the CPU.
            precision: "auto", "fp32" or "bf16", for scoring.
            max_length: tokens after which a pair is cut; None is the folder's own length.
            layout: layout of a passage; None is the folder's, or else "{title} {text}".
            train: load it to be trained, in fp32; an encoder gets a head of one output, drawn from
                `seed`.
            dropout: replaces the configuration's dropout probabilities, if given.

        Raises:
            ArtifactError: the model is not there, or is no cross-encoder.
            ConfigError: a setting is not valid.
        """
        folder = model_folder(name_or_path)
        device = resolve_device(device)
        config_json = read_config(folder)
        reading = PassageLayout(str(layout or config_json.get(_LAYOUT_KEY) or TITLE_AND_TEXT))
        network, tokenizer = _read_network(
            folder, config_json, device, train=train, dropout=dropout, seed=seed
        )
        setattr(network.config, _LAYOUT_KEY, reading.layout)  # saved with the network
        longest = transformer_settings(folder).get("max_seq_length")
        limit = min(int(longest or tokenizer_limit(folder)), position_limit(config_json))
        limit = min(limit, max_length or limit)
        prompt = ""
        if train:
            network.train()
        else:
            _prepare_scoring(network, device, resolve_precision(precision, device))
            prompt = _prompt(folder)
        return cls(str(name_or_path), network, tokenizer, limit, reading, prompt)

    def logits(self, questions: Sequence[str], passages: Sequence[Passage]) -> tuple[Tensor, int]:
        """Log-odds (n,) float32 that passage i is relevant to question i, n > 0; and the tokens
        read.
        """
        encoded = self.tokenizer(
            [self.prompt + question for question in questions],
            self.layout.joined(passages),
            truncation="longest_first",
            max_length=self.max_length,
            padding=False,
        )

        def run(rows: list[int]) -> Tensor:
            inputs = {}
            for name, values in encoded.items():
                inputs[name] = [values[row] for row in rows]
            batch = self.tokenizer.pad(inputs, return_tensors="pt").to(self.network.device)
            outputs: Tensor = self.network(**batch).logits.float()  # (n, 1), or (n, 2)
            if outputs.shape[1] == 1:
                return outputs[:, 0]
            return outputs[:, 1] - outputs[:, 0]  # relevant against not

        lengths = list(map(len, encoded["input_ids"]))
        parts, order = run_by_length(run, lengths, _BATCH_LIMITS)
        return torch.cat(parts)[order], sum(lengths)

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Log-odds (n,) float32 that passage i is relevant to question i; probabilities near 1
        would not tell passages apart.
        """
        if not questions:
            return np.zeros(0, np.float32)
        with torch.inference_mode():
            logits, _ = self.logits(questions, passages)
        return np.asarray(logits.cpu().numpy(), np.float32)


def _prepare_scoring(network: Any, device: str, dtype: torch.dtype) -> None:
    """Move a network to where it scores; on a CPU its encoder becomes a `FastBert` if it can."""
    base = network.base_model
    is_packed = device == "cpu" and network.config.model_type in _FAST
    if is_packed and FastBert.supports(base.config):
        packed = _PackedBase(base, "bf16" if dtype == torch.bfloat16 else "fp32")
        setattr(network, network.base_model_prefix, packed)
        dtype = torch.float32  # of the head
    network.to(device, dtype).eval()


def _read_network(
    folder: Path,
    config_json: Mapping[str, Any],
    device: str,
    *,
    train: bool,
    dropout: float | None,
    seed: int,
) -> tuple[Any, Any]:
    """The network in fp32 on the CPU, with a new head if an encoder is to be trained, and its
    tokenizer.
    """
    from transformers import AutoModelForSequenceClassification

    architecture = (config_json.get("architectures") or [""])[0]
    classifies = "SequenceClassification" in architecture
    expected = "expected a sequence-classification model of transformers, or an encoder to train"
    with loading(f"{folder} is not a cross-encoder that can be loaded", hint=expected):
        config: Any = transformers_config(folder)
        is_cross_encoder = classifies and config.num_labels in (1, 2)
        if not is_cross_encoder and (classifies or not train):
            raise ArtifactError(
                f"{folder} is a {architecture or 'model without architecture'} with {config.num_labels} "
                "outputs, expected a SequenceClassification model with 1 or 2",
                hint=f"give a cross-encoder, for example {_EXAMPLE}, or train one: rag train reranker",
            )
        set_dropout(config, dropout)
        tokenizer = transformers_tokenizer(folder)
        if not classifies:
            config.num_labels = 1
            tokenizer.chat_template = None  # what is trained reads plain pairs
        elif len(_modules(folder)) > 1:
            raise ArtifactError(
                f"{folder} has modules behind its {architecture}, expected a cross-encoder of one module",
                hint=f"re-rank with another, for example {_EXAMPLE}",
            )
        elif _is_chat(folder, tokenizer):
            raise ArtifactError(
                f"{folder} is a {architecture} that reads question and passage in a chat template, "
                "expected a cross-encoder of plain pairs",
                hint=f"re-rank with another, for example {_EXAMPLE}",
            )
        # Behind the tokens, padding moves neither their positions nor the first of them.
        tokenizer.padding_side = "right"
        # Decoders state no padding; their classes find the last token by it.
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # for a new head
            network, _ = load_network(
                AutoModelForSequenceClassification,
                folder,
                config,
                headless=not classifies,
                dtype=torch.float32,
                attn_implementation=attention_for(config, device) if train else None,
            )
    return network, tokenizer


def _modules(folder: Path) -> list[Any]:
    """The modules of a folder of sentence-transformers; none where there is no list of them."""
    file = folder / "modules.json"
    return list(read_json(file)) if file.is_file() else []


def _prompt(folder: Path) -> str:
    """The prompt that sentence-transformers puts before every question, or ""."""
    file = folder / LIBRARY_FILE
    library = read_json(file) if file.is_file() else {}
    if library.get("model_type") != "CrossEncoder":
        return ""
    return str((library.get("prompts") or {}).get(library.get("default_prompt_name")) or "")


def _is_chat(folder: Path, tokenizer: Any) -> bool:
    """Whether a pair is put into a chat template before it is read, as sentence-transformers does.

    A list of modalities decides where the folder has one, else whether there is a template.
    """
    modalities = transformer_settings(folder).get("modality_config")
    if modalities:
        return "message" in modalities
    return tokenizer.chat_template is not None


class _PackedBase(torch.nn.Module):
    """The encoder below a classification head, computed by `FastBert`, whose copies of the weights
    remain.
    """

    def __init__(self, base: Any, precision: str) -> None:
        super().__init__()
        self._fast = FastBert(base.state_dict(), base.config, precision=precision)
        self.pooler = getattr(base, "pooler", None)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        **_: object,
    ) -> Any:
        """Hidden states (n, L, H), and BERT's pooled vector (n, H) where there is one."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        hidden = self._fast.padded(input_ids, attention_mask, token_type_ids)
        pooled = None if self.pooler is None else self.pooler(hidden)
        return BaseModelOutputWithPooling(hidden, pooled)
