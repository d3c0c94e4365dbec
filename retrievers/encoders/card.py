"""The model card of a trained retriever: data, command, configuration, figures."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from rag.runtime.model_files import EMBEDDED_ENCODER_NAMES
from retrievers.encoders.layout import PAIR
from retrievers.encoders.settings import EncoderForm
from retrievers.training.config import RetrieverTrainConfig

_PATHS = ("out", "train_files", "validation_file", "index")
_FOLDERS = ("encoder", "cross-encoder", "reader", "trained", "query_encoder", "passage_encoder")  # of any run
_UNSAID = frozenset({*_PATHS, "name", "notes", "threads", "save_every_s", "log_every_steps", "tensorboard"})


def model_card(
    config: RetrieverTrainConfig,
    form: EncoderForm,
    *,
    data: Mapping[str, object],
    figures: Mapping[str, object],
) -> str:
    """Markdown with a YAML head: what it is, data, command, figures, licence; folders are not named.

    Args:
        form: how texts become vectors.
        data: what was trained on, as name → value.
        figures: what was measured on held-out questions, as name → value.
    """
    start = _model_name(config.model.question_encoder)
    other = _model_name(config.model.passage_encoder or config.model.question_encoder)
    towers = f"one tower for both sides, started from {start}"
    if not config.model.shared:
        towers = f"two towers, both started from {start}"
        if other != start:
            towers = f"two towers, started from {start} (questions) and {other} (passages)"
    shown = _said(config)
    shown |= {"question_encoder": start} | ({} if config.model.shared else {"passage_encoder": other})
    several = form.interaction is not None
    library = "sentence-transformers" if config.model.shared else "transformers"
    about = "A dense retriever: questions and passages become vectors whose "
    about += f"""{"cosine" if form.normalize else "inner product"}
says how well a passage answers a question."""
    if several:
        library = "PyLate"
        about = "A retriever by late interaction: every token has a vector, and the best similarities of a\n"
        about += "question's tokens among a passage's are added."
    layout = "[CLS] title [SEP] text [SEP]" if form.layout == PAIR else f"[CLS] {form.layout} [SEP]"
    prefixes = [
        f"`{prefix}` before every {what}"
        for what, prefix in (("question", form.query_prefix), ("passage", form.passage_prefix))
        if prefix
    ]
    reading = f" {form.interaction.describe().capitalize()}." if form.interaction is not None else ""
    pool = "a pool of index passages" if config.data.validation_passages else "all passages of an index"
    searched = f"""`nll` is the loss over held-out batches; `average_rank` the mean number of passages above
the positive (0 is best, ties count half) in the pool of those of up to {config.data.validation_questions}
held-out questions (published figures pool up to 10000 questions: a smaller pool gives smaller ranks);
`top-k` and `mrr` (up to rank 100) are measured by searching {pool}, where one was given."""
    return f"""---
library_name: {library}
pipeline_tag: sentence-similarity
tags: [{"late-interaction" if several else "dense-retrieval"}, question-answering]
---
# {config.name}

{about}

It has {towers}. Pooling: {form.pooling}; vectors are {
        "" if form.normalize else "not "
    }normalised. Questions are laid out as `[CLS] question [SEP]`, passages as
`{layout}`, of at most {form.max_length} tokens{", with " + " and ".join(prefixes) if prefixes else ""}.{
        reading
    }

```
rag index CORPUS --encoder {config.name}{" --index-type plaid" if several else ""} --out INDEX
rag ask "a question" --index INDEX
```

{_training(config, shown, data, figures, searched)}"""


def reranker_card(
    config: RetrieverTrainConfig, *, data: Mapping[str, object], figures: Mapping[str, object]
) -> str:
    """The same of a cross-encoder."""
    start = _model_name(config.model.question_encoder)
    usual = type(config.model)().flat()
    shown = {k: v for k, v in _said(config).items() if k not in usual or v != usual[k]}
    layout = config.model.layout or "title text"
    listed = """`nll` is the loss over held-out lists; `list_mrr` and `list_top1` say, in percent, where
the best positive stands among a question's own hard negatives."""
    return f"""---
library_name: transformers
pipeline_tag: text-ranking
tags: [cross-encoder, question-answering]
---
# {config.name}

A cross-encoder: it reads question and passage together, `[CLS] question [SEP] {layout} [SEP]`,
and says how well the passage answers the question. It started from {start}.

```
rag ask "a question" --index INDEX --rerank {config.name}
```

{_training(config, shown | {"question_encoder": start}, data, figures, listed)}"""


def _said(config: RetrieverTrainConfig) -> dict[str, Any]:
    said = to_jsonable_python(config.flat())
    return {k: v for k, v in said.items() if v not in (None, {}) and k not in _UNSAID}


def _training(
    config: RetrieverTrainConfig,
    shown: Mapping[str, object],
    data: Mapping[str, object],
    figures: Mapping[str, object],
    explained: str,
) -> str:
    return f"""## Training
{_table(("what", "value"), data)}

```
{_command(config)}
```

```json
{json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False)}
```

{config.notes or _default_note(config)}

## Figures
On questions that were held out of training{
        " and never used for a choice"
        if config.run.select_by == "last"
        else ", on which the checkpoint was chosen"
    }:

{_table(("what", "value"), figures) if figures else "Nothing was measured."}

{explained}

## Licence
The weights follow the licences of the data and of the encoder they were started from.
"""


def _model_name(given: str | None) -> str:
    """Of a folder its last part, or as many as tell it from others: a card does not say where it lay."""
    if given is None:
        return EMBEDDED_ENCODER_NAMES[0]
    if not (Path(given).exists() or given.startswith((".", "/"))):
        return given
    parts = Path(given).absolute().parts
    common = len(list(takewhile(_FOLDERS.__contains__, reversed(parts))))
    return "/".join(parts[-1 - common :])


def _command(config: RetrieverTrainConfig) -> str:
    parts = [f"rag train {config.recipe}", *(f"--train {path.name}" for path in config.train_files)]
    if config.index is not None:
        parts.append("--index INDEX")
    if config.validation_file is not None:
        parts.append(f"--set validation_file={config.validation_file.name}")
    usual = type(config)(out=config.out, train_files=config.train_files, index=config.index).flat()
    for name, value in config.flat().items():
        if name not in _UNSAID and value != usual[name]:
            parts.append(f"--set {_assignment(name, value)}")
    return " \\\n    ".join([*parts, "--out run"])


def _default_note(config: RetrieverTrainConfig) -> str:
    optim, questions = config.optim, config.data.batch_size
    return f"Learning rate {optim.learning_rate:g} ({optim.schedule}), {questions} questions a step."


def _assignment(name: str, value: Any) -> str:
    """As a shell takes it and `parse_overrides` reads it back."""
    given = _model_name(value) if name.endswith("_encoder") else value
    plain = isinstance(given, str) and re.fullmatch(r"[A-Za-z][\w./-]*", given)
    return shlex.quote(f"{name}={given if plain else json.dumps(given, ensure_ascii=False)}")


def _table(head: tuple[str, str], rows: Mapping[str, object]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {_cell(value)} |" for name, value in rows.items())])


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(number)}" for key, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
