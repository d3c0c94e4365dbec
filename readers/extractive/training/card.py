"""The model card of a trained reader, written from its configuration and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rag.runtime.model_files import EMBEDDED_ENCODER_NAMES
from readers.extractive.settings import ReaderManifest
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet

_LICENCE = """SQuAD 1.1 (Rajpurkar et al. 2016) and HotpotQA (Yang et al. 2018) are published under
CC BY-SA 4.0, Natural Questions (Kwiatkowski et al. 2019) under CC BY-SA 3.0, MuSiQue (Trivedi et al. 2022)
under CC BY 4.0, 2WikiMultiHopQA (Ho et al. 2020) under Apache-2.0; all quote Wikipedia (CC BY-SA). The
starting encoder `all-MiniLM-L6-v2` is Apache-2.0. Weights trained on the first four are shared under
CC BY-SA 4.0; the code around them is Apache-2.0."""

_SAYS = "; it also answers yes or no, which has no place in a passage"

_DEQUANTISED = " They are dequantised when loaded."
_INT8 = """

On CPUs with avx512_vnni and without amx_bf16 the linear layers compute in int8 as well, elsewhere the weights
are dequantised when loaded (`precision="auto"`; "int8", "bf16" and "fp32" can be asked for). Inputs of the
attention and feed-forward blocks are quantised by ranges of each channel that were measured on held-out
questions (`ranges.safetensors`), other inputs with a scale for each token, so that an answer does not depend
on what else is read with it. Attention, sums, LayerNorm and the head stay in floating point."""


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {number}" for key, number in value.items())
    return str(value)


def _title(source: str) -> str:
    """The last part of a path or of a Hub name."""
    return Path(source).name


def _set(one: TrainingSet) -> dict[str, object]:
    """A set's settings with file names in place of paths."""
    values = one.model_dump(mode="json", exclude_defaults=True)
    return {k: _title(str(v)) if k in ("questions", "retrieved", "serving") else v for k, v in values.items()}


def model_card(config: ReaderTrainConfig, manifest: ReaderManifest, figures: Mapping[str, object]) -> str:
    """Markdown with a YAML head: what it is, data, command, figures, limits, licence.

    Args:
        figures: name → value or table of values, as `train_reader` measured them.
    """
    shown = config.model_dump(mode="json", exclude={"notes", "out", "test_file", "train", "calibrate"})
    encoder = _title(config.model.encoder or EMBEDDED_ENCODER_NAMES[0])
    shown["model"]["encoder"] = encoder
    shown |= {
        "train": [_set(one) for one in config.train],
        "calibrate": [_set(one) for one in config.calibrate],
    }
    sets = ", ".join(one.label for one in config.train)
    inference = _INT8 if manifest.ranges_file else _DEQUANTISED
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in figures.items())
    return f"""---
license: cc-by-sa-4.0
language: en
pipeline_tag: question-answering
---
# {manifest.name}

An extractive reader: given a question and passages with titles, it marks the words that answer the
question, scores spans so that they can be compared across passages, and says when no passage answers
it{_SAYS if config.model.answer_types else ""}. Started from: {encoder}. Rows are laid out as
`[CLS] question [SEP] title [SEP] text [SEP]`.

Weights are int8 with one fp32 scale per output row (`{manifest.weights_file}`, sha256
`{manifest.weights_sha256}`); positions, segments and the head are fp32.{inference}

## Training
Sets: {sets}; without their held-out articles, on which every choice was made and the confidence was
calibrated. Hard negatives are passages that were retrieved for the training questions, or that the set shows
beside the right ones, and do not contain the answer. A test file is read after training, for the figures
below alone. `rag train reader --config FILE --out run` with

```json
{json.dumps(shown, indent=2)}
```

{config.notes}

## Figures
| what | value |
|---|---|
{rows}

EM and F1 by the official SQuAD 1.1 rules, in percent. "gold passages" gives the reader the annotated
passages; "retrieved" gives it what the retriever found for held-out questions, every fourth of them also
without the passages that hold an answer. `ece` is the expected calibration error of the first answer's
confidence, in [0, 1] over 15 bins of equal width, an answer counting as right by exact match.
`no_answer_recall` is the share of questions without an answer for which "no answer" is likelier than the
first answer, `no_answer_false_alarms` its share where the first answer is right.
These and `nll` are measured on each half of the questions with the confidence fitted on the other half.

## Limits
English, short factual answers that stand word for word in a passage. It learnt from Wikipedia paragraphs
and repeats what a passage says, right or wrong. It reads every passage by itself: what only two passages say
together it can at best guess. Long, explanatory or computed answers are outside its reach.

## Licence
{_LICENCE}
"""
