"""What an encoder folder says about itself: pooling, normalisation, prompts, lengths, projections.

Three kinds of folder are read: sentence-transformers (`modules.json`), DPR (`model_type` "dpr") and plain
transformers. Pooling and prefixes that do not fit the weights do not fail, they quietly find worse passages:
everything is taken from the folder where it says so, and what has to be guessed is said in a warning.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rag.core.errors import ArtifactError, ConfigError, DataError
from rag.core.files import read_json
from retrievers.encoders.layout import PAIR

__all__ = ["POOLINGS", "EncoderSettings", "read_settings"]

POOLINGS = ("cls", "mean", "max", "lasttoken")
_OLD_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_DPR_MAX_LENGTH = 256
_HUGE = 1 << 20  # tokenizers write absurd lengths for "no limit"


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How token vectors become one vector, and how texts become tokens.

    Attributes:
        kind: "sentence-transformers", "dpr" or "transformers".
        weights_dir: folder of config.json and model.safetensors.
        pooling: one of `POOLINGS`.
        normalize: whether vectors get unit length.
        similarity: "dot" or "cosine".
        max_length: tokens after which texts are cut, special tokens included.
        query_prefix: put before every question.
        passage_prefix: put before every passage.
        layout: see `PassageLayout`.
        lower_case: texts are lower-cased before tokenisation.
        projections: folders of dense layers applied to the pooled vector, in order.
        notes: what had to be guessed.
    """

    kind: str
    weights_dir: Path
    pooling: str
    normalize: bool
    similarity: str
    max_length: int
    query_prefix: str = ""
    passage_prefix: str = ""
    layout: str = "{title} {text}"
    lower_case: bool = False
    projections: tuple[Path, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def override(self, **changes: Any) -> EncoderSettings:
        """A copy in which every change that is not None is made."""
        made = {name: value for name, value in changes.items() if value is not None}
        if "pooling" in made and made["pooling"] not in POOLINGS:
            raise ConfigError(f"pooling is {made['pooling']!r}, expected one of {', '.join(POOLINGS)}")
        if "max_length" in made and not 2 <= made["max_length"] <= self.max_length_limit():
            raise ConfigError(
                f"max_length is {made['max_length']}, this encoder takes 2 to {self.max_length_limit()}"
            )
        if made.get("normalize") is not None and made["normalize"] != self.normalize:
            made.setdefault("similarity", "cosine" if made["normalize"] else "dot")
        return replace(self, **made)

    def max_length_limit(self) -> int:
        """Most tokens the position table allows."""
        return position_limit(read_config(self.weights_dir))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    try:
        config = read_json(folder / "config.json")
    except DataError as error:
        raise ArtifactError(
            f"{folder} is not an encoder: {error.message}",
            hint="give a Hugging Face name, or a folder with config.json, tokenizer.json, model.safetensors",
        ) from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ArtifactError(
            f"{folder}/config.json names no model_type", hint="is this a transformers checkpoint?"
        )
    return config


def position_limit(config: dict[str, Any]) -> int:
    """Most tokens a model of this configuration can read."""
    limit = int(config.get("max_position_embeddings") or 512)
    if config["model_type"] in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        limit -= int(config.get("pad_token_id", 1)) + 1  # their positions start after the padding index
    return max(2, limit)


def read_settings(folder: Path) -> EncoderSettings:
    """Read a folder of any of the three kinds.

    Raises:
        ArtifactError: it is not an encoder, or has parts this program does not know.
    """
    if (folder / "modules.json").is_file():
        return _sentence_transformers(folder)
    config = read_config(folder)
    if config["model_type"] == "dpr":
        return EncoderSettings(
            kind="dpr", weights_dir=folder, pooling="cls", normalize=False, similarity="dot", layout=PAIR,
            max_length=min(_DPR_MAX_LENGTH, position_limit(config)),
        )  # fmt: skip
    note = (
        f"{folder.name} does not say how its token vectors are pooled; taking their mean, not normalised. "
        "Set pooling (and normalize) if it was trained otherwise"
    )
    return EncoderSettings(
        kind="transformers", weights_dir=folder, pooling="mean", normalize=False, similarity="dot",
        max_length=min(_tokenizer_limit(folder), position_limit(config), 512),
        notes=(note, *_prefix_note(folder.name, config, "", "")),
    )  # fmt: skip


def _sentence_transformers(folder: Path) -> EncoderSettings:
    modules = read_json(folder / "modules.json")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize", "Dense"})
    if unknown or kinds[:2] != ["Transformer", "Pooling"]:
        raise ArtifactError(
            f"{folder}/modules.json has the modules {', '.join(kinds)}; this program knows Transformer, "
            "Pooling, then Dense and Normalize",
            hint="use an encoder made of these modules",
        )
    if "Normalize" in kinds and kinds[-1] != "Normalize":
        raise ArtifactError(
            f"{folder}/modules.json normalises before another module, expected Normalize last"
        )
    weights_dir = folder / modules[0]["path"]
    config = read_config(weights_dir)
    transformer = _optional_json(weights_dir / "sentence_bert_config.json")
    own = _optional_json(folder / "config_sentence_transformers.json")
    pooling_config = _optional_json(folder / modules[1]["path"] / "config.json")
    prompts = {str(name): str(text) for name, text in (own.get("prompts") or {}).items() if text}
    # Empty prompts are passed over: sentence-transformers 6 saves an empty "document" beside a "passage".
    default = prompts.get(own.get("default_prompt_name") or "", "")
    query = prompts.get("query", default)
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    if (query or passage) and pooling_config.get("include_prompt") is False:
        raise ArtifactError(f"{folder} leaves prompts out of pooling, which this program does not do")
    limit = position_limit(config)
    length = transformer.get("max_seq_length") or _tokenizer_limit(weights_dir)
    normalize = "Normalize" in kinds
    stated = own.get("similarity_fn_name")
    if stated not in (None, "cosine", "dot", "dot_score"):
        raise ArtifactError(f"{folder} is compared by {stated!r}, expected cosine or dot")
    notes = _prefix_note(folder.name, config, query, passage)
    if stated is None and not normalize:
        notes += (
            f"{folder.name} does not say whether it is compared by dot product or cosine; taking dot product",
        )
    cosine = normalize or stated == "cosine"
    return EncoderSettings(
        kind="sentence-transformers",
        weights_dir=weights_dir,
        pooling=_pooling(folder, pooling_config),
        normalize=cosine,
        similarity="cosine" if cosine else "dot",
        max_length=min(int(length), limit),
        query_prefix=query,
        passage_prefix=passage,
        layout=str(own.get("passage_layout") or "{title} {text}"),
        lower_case=bool(transformer.get("do_lower_case")),
        projections=tuple(
            folder / module["path"] for module, kind in zip(modules, kinds, strict=True) if kind == "Dense"
        ),
        notes=notes,
    )


def _pooling(folder: Path, config: dict[str, Any]) -> str:
    found = config.get("pooling_mode")
    names = [found] if isinstance(found, str) else list(found or [])
    names = names or [name for key, name in _OLD_POOLING_KEYS.items() if config.get(key)]
    if len(names) != 1 or names[0] not in POOLINGS:
        raise ArtifactError(
            f"{folder} pools by {' + '.join(map(str, names)) or 'nothing'}, expected {' or '.join(POOLINGS)}"
        )
    return str(names[0])


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: expected a JSON object, found {json.dumps(value)[:40]}")
    return value


def _tokenizer_limit(folder: Path) -> int:
    limit = _optional_json(folder / "tokenizer_config.json").get("model_max_length") or _HUGE
    return int(min(limit, _HUGE))


def _prefix_note(name: str, config: dict[str, Any], query: str, passage: str) -> tuple[str, ...]:
    """The E5 family was trained with prefixes that its folders do not state."""
    names = f"{name} {config.get('_name_or_path', '')}".lower()
    if (
        not query
        and not passage
        and any(part.startswith("e5") for part in names.replace("/", "-").split("-"))
    ):
        return (
            f'{name} looks like an E5 model: those need query_prefix="query: ", passage_prefix="passage: "',
        )
    return ()
