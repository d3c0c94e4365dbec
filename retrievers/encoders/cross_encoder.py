"""Cross-encoders: question and passage read together; slow, and better judges than any vector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexers.protocols import FloatArray
from rag.core.errors import ArtifactError, ConfigError, DataError
from rag.core.types import Passage
from rag.runtime.fast.packing import plan_batches
from rag.runtime.hardware import resolve_device, resolve_precision
from rag.runtime.model_files import model_folder, position_limit, read_config, weight_files
from retrievers.encoders.layout import PAIR, PassageLayout

__all__ = ["CrossEncoder"]

_BATCH_TOKENS = 8192


class CrossEncoder:
    """Scores how relevant passages are to questions; for filtering negatives and for re-ranking.

    Made by `load`. A model with one output gives its sigmoid, a model with two the probability of the second.

    Attributes:
        name: folder or hub name it came from.
        max_length: tokens after which passages are cut; questions are cut last.
        device: "cpu" or "cuda".
    """

    def __init__(
        self, model: torch.nn.Module, tokenizer: Any, *, name: str, max_length: int, device: str,
        dtype: torch.dtype, batch_size: int, layout: PassageLayout,
    ) -> None:  # fmt: skip
        self.name, self.max_length, self.device = name, max_length, device
        self._model, self._tokenizer = model.to(device).eval(), tokenizer
        self._dtype, self._batch_size, self._layout = dtype, batch_size, layout

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        *,
        device: str = "auto",
        precision: str = "auto",
        max_length: int = 512,
        batch_size: int = 64,
        layout: str = "{title} {text}",
    ) -> CrossEncoder:
        """Load a sequence-classification model.

        Args:
            name_or_path: folder or Hugging Face name, for example cross-encoder/ms-marco-MiniLM-L6-v2.
            device: "auto", "cpu" or "cuda".
            precision: "auto", "fp32" or "bf16".
            max_length: tokens of question and passage together.
            batch_size: most pairs in a batch.
            layout: a template of {title} and {text} for the passage.

        Raises:
            ArtifactError: no such model, it has no safetensors weights, or it has more than two outputs.
            ConfigError: a setting cannot be.
        """
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        if layout == PAIR:
            raise ConfigError(
                "a cross-encoder reads the question as first segment: the passage must be one text",
                hint="give a template such as {title} {text}",
            )
        folder = model_folder(name_or_path)
        config = read_config(folder)
        weight_files(folder)
        architecture = (config.get("architectures") or [""])[0]
        outputs = AutoConfig.from_pretrained(folder).num_labels
        if outputs not in (1, 2) or "SequenceClassification" not in architecture:
            raise ArtifactError(
                f"{folder} is a {architecture or 'model without architecture'} with {outputs} outputs, "
                "expected a SequenceClassification model with 1 or 2",
                hint="give a cross-encoder, for example cross-encoder/ms-marco-MiniLM-L6-v2",
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model = AutoModelForSequenceClassification.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(
                f"{folder} is not a cross-encoder that can be loaded ({error})",
                hint="expected a sequence-classification model of transformers",
            ) from error
        where = resolve_device(device)
        return cls(
            model,
            tokenizer,
            name=str(name_or_path),
            max_length=min(max_length, position_limit(config)),
            device=where,
            dtype=resolve_precision(precision, where),
            batch_size=batch_size,
            layout=PassageLayout(layout),
        )

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> FloatArray:
        """Probability (n,) float32 that passage i is relevant to question i.

        Raises:
            DataError: questions and passages differ in number.
        """
        if len(questions) != len(passages):
            raise DataError(f"{len(questions)} questions for {len(passages)} passages, expected pairs")
        if not questions:
            return np.zeros(0, np.float32)
        texts, _ = self._layout.render([p.title for p in passages], [p.text for p in passages])
        encoded = self._tokenizer(
            list(questions), texts, truncation="only_second" if self._fits(questions) else "longest_first",
            max_length=self.max_length, padding=False,
        )  # fmt: skip
        scores = np.empty(len(texts), np.float32)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        for rows in plan_batches(lengths, max_rows=self._batch_size, max_tokens=_BATCH_TOKENS):
            batch = {key: [encoded[key][row] for row in rows] for key in encoded}
            scores[rows] = self._run(self._tokenizer.pad(batch, return_tensors="pt"))
        return scores

    def _fits(self, questions: Sequence[str]) -> bool:
        """Whether every question leaves room for some of its passage."""
        lengths = [len(ids) for ids in self._tokenizer(list(questions), add_special_tokens=True)["input_ids"]]
        return max(lengths) + 8 < self.max_length

    def _run(self, batch: Any) -> FloatArray:
        fast = self._dtype == torch.bfloat16
        device = self.device.partition(":")[0]
        with torch.inference_mode(), torch.autocast(device, self._dtype) if fast else nullcontext():
            logits = self._model(**batch.to(self.device)).logits.float()  # (n, 1 or 2)
        if logits.shape[1] == 1:
            chances = torch.sigmoid(logits[:, 0])
        else:
            chances = torch.softmax(logits, dim=1)[:, 1]
        return np.asarray(chances.cpu().numpy(), np.float32)
