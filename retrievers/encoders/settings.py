"""The settings in an encoder's folder: head, prompts, lengths, segments.

These kinds of folder are read: sentence-transformers, its `MultiVectorEncoder` and PyLate (`modules.json`),
DPR (`model_type` "dpr"), original ColBERT checkpoints (`artifact.metadata`) and plain transformers. Pooling
and prefixes that do not fit the weights cause no error, only worse retrieval. Therefore every setting that
the folder states is taken from it, and a warning names those that had to be guessed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rag.core.errors import ArtifactError, ConfigError
from rag.core.files import read_json
from rag.runtime import backbone
from rag.runtime.model_files import folder_tokenizer, position_limit, read_config
from retrievers.encoders.head import ACTIVATIONS, HeadLayer, find_weight, weight_shape
from retrievers.encoders.interaction import Interaction
from retrievers.encoders.layout import PAIR, PASSAGE_PROMPTS, passage_prompt
from retrievers.encoders.static import truncation_notes

POOLINGS = (*backbone.POOLINGS, "pooler")
"""Ways to pool token vectors: those of the backbone, and [CLS] through BERT's layer with tanh."""
POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Switches of sentence-transformers' Pooling modules, and the pooling that each stands for."""
_DPR_MAX_LENGTH = 256
COLBERT_MARKERS = ("[unused0]", "[unused1]")  # of questions and passages
_COLBERT = "artifact.metadata"  # a file of original ColBERT checkpoints
_MASK = "MultiVectorMask"  # sentence-transformers' module for late interaction
_HUGE = 1 << 20  # tokenizers write absurd lengths for "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    """How texts become vectors, and where the weights are; what an encoder's folder records.

    Attributes:
        kind: "sentence-transformers", "dpr", "ance", "fid", "colbert" or "transformers".
        weights_dir: folder of config.json and model.safetensors.
        pooling: one of `POOLINGS`.
        normalize: whether vectors get unit length.
        max_length: tokens after which texts are cut, special tokens included.
        layout: see `PassageLayout`.
        query_prefix: put before every question.
        passage_prefix: put before every passage.
        on_tokens: whether the head's layers are applied to every token, before pooling.
        segments: whether tokens of the second segment have token type 1; if not, all have type 0.
        interaction: settings of late interaction; given if and only if `pooling` is "tokens".
        layers: layers of the head, in order.
        notes: warnings about settings that had to be guessed.
    """

    kind: str
    weights_dir: Path
    pooling: str
    normalize: bool
    max_length: int
    layout: str = "{title} {text}"
    query_prefix: str = ""
    passage_prefix: str = ""
    on_tokens: bool = False
    segments: bool = False
    interaction: Interaction | None = None
    layers: tuple[HeadLayer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def similarity(self) -> str:
        """ "dot", "cosine", or "maxsim" for several vectors per text."""
        if self.pooling == "tokens":
            return "maxsim"
        return "cosine" if self.normalize else "dot"

    def override(self, **changes: Any) -> EncoderSettings:
        """A copy with all changes that are not None; `query_tokens` is a field of `interaction`."""
        made = {name: value for name, value in changes.items() if value is not None}
        if "pooling" in made and made["pooling"] not in POOLINGS:
            raise ConfigError(f"pooling is {made['pooling']!r}, expected one of {', '.join(POOLINGS)}")
        if "max_length" in made and not 2 <= made["max_length"] <= self.max_length_limit():
            raise ConfigError(
                f"max_length is {made['max_length']}, this encoder takes 2 to {self.max_length_limit()}"
            )
        if made.get("pooling") == "pooler" != self.pooling:
            made["layers"] = (_pooler(self.weights_dir), *self.layers)
        query_tokens = made.pop("query_tokens", None)
        if made.get("pooling", self.pooling) != "tokens":
            return replace(self, **made, interaction=None)
        how = self.interaction or Interaction()
        if self.interaction is None:  # ColBERT's markers, where the vocabulary has them
            known = folder_tokenizer(self.weights_dir).get_vocab()
            if all(marker in known for marker in COLBERT_MARKERS):
                for name, marker in zip(("query_prefix", "passage_prefix"), COLBERT_MARKERS, strict=True):
                    made[name] = made.get(name) or f"{marker} "
        made.setdefault("normalize", self.normalize or self.pooling != "tokens")
        return replace(
            self, **made, interaction=replace(how, query_tokens=query_tokens) if query_tokens else how
        )

    @property
    def dim(self) -> int:
        """Size D of the vectors, read from the configuration and the headers of weight files alone."""
        for layer in reversed(self.layers):
            return weight_shape(layer)[0]
        return int(backbone.load_config(self.weights_dir).hidden_size)

    def max_length_limit(self) -> int:
        """Maximum number of tokens that the position embeddings allow."""
        return position_limit(read_config(self.weights_dir))


def read_settings(folder: Path) -> EncoderSettings:
    """Read a folder of any of these kinds.

    Raises:
        ArtifactError: it is not an encoder, or has parts this program does not know.
    """
    if (folder / "modules.json").is_file():
        return _sentence_transformers(folder)
    config = read_config(folder)
    if config["model_type"] == "dpr":
        projection = find_weight(folder, "encode_proj.weight") if config.get("projection_dim") else None
        return EncoderSettings(
            kind="dpr", weights_dir=folder, pooling="cls", normalize=False, layout=PAIR,
            max_length=min(_DPR_MAX_LENGTH, position_limit(config)),
            layers=(HeadLayer("linear", folder, projection),) if projection else (),
        )  # fmt: skip
    limit = min(_tokenizer_limit(folder), position_limit(config), 512)
    for linear, norm, kind in (("embeddingHead", "norm", "ance"), ("proj", "norm", "fid")):
        if config.get("model_type") and _has(folder, f"{linear}.weight", f"{norm}.weight"):
            first = config.get("extract_cls", False) or kind == "ance"
            return EncoderSettings(
                kind=kind, weights_dir=folder, pooling="cls" if first else "mean", normalize=False,
                max_length=limit, on_tokens=kind == "fid",
                layers=(
                    HeadLayer("linear", folder, f"{linear}.weight"),
                    HeadLayer("norm", folder, f"{norm}.weight"),
                ),
            )  # fmt: skip
    linear = "linear.weight"
    named = (folder / _COLBERT).is_file() or "HF_ColBERT" in (config.get("architectures") or ())
    if named and _has(folder, linear):
        colbert = _optional_json(folder / _COLBERT)
        return EncoderSettings(
            kind="colbert", weights_dir=folder, pooling="tokens", normalize=True,
            max_length=min(int(colbert.get("doc_maxlen") or 220), position_limit(config)),
            layers=(HeadLayer("linear", folder, linear),), interaction=Interaction.from_colbert(colbert),
            query_prefix=f"{colbert.get('query_token_id') or COLBERT_MARKERS[0]} ",
            passage_prefix=f"{colbert.get('doc_token_id') or COLBERT_MARKERS[1]} ",
            notes=() if colbert else (
                f"{folder.name} lacks {_COLBERT}, which states the lengths and markers of texts: "
                "taking ColBERT's usual settings",
            ),
        )  # fmt: skip
    note = (
        f"{folder.name} does not say how its token vectors are pooled; taking their mean, not normalised. "
        "Set pooling (and normalize) if it was trained otherwise"
    )
    return EncoderSettings(
        kind="transformers", weights_dir=folder, pooling="mean", normalize=False,
        max_length=limit, notes=(note, *_prefix_note(folder.name, config, "", "")),
    )  # fmt: skip


def _has(folder: Path, *names: str) -> bool:
    """Whether the folder has weights of exactly these names."""
    if not any(folder.glob("model.safetensors*")):
        return False
    return all(find_weight(folder, name) == name for name in names)


def _pooler(folder: Path) -> HeadLayer:
    name = find_weight(folder, "pooler.dense.weight")
    if name is None:
        raise ConfigError(f"pooling is pooler, and {folder} has none", hint="use cls, mean or max")
    return HeadLayer("linear", folder, name, "Tanh")


def _sentence_transformers(folder: Path) -> EncoderSettings:
    modules = [
        module
        for module in read_json(folder / "modules.json")
        if not str(module["type"]).endswith(".Dropout")  # which acts in training alone
    ]
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    own = _optional_json(folder / "config_sentence_transformers.json")
    if own.get("model_type") == "CrossEncoder":
        raise ArtifactError(
            f"{folder} is a cross-encoder: it scores pairs and makes no vectors",
            hint=f"order hits with it: --rerank {folder}",
        )
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", _MASK})
    if unknown or kinds[:1] != ["Transformer"] or kinds.count("Pooling") > 1:
        raise ArtifactError(
            f"{folder}/modules.json has the modules {', '.join(kinds)}; this program knows Transformer, "
            f"then Pooling or {_MASK}, Dense, LayerNorm and Normalize",
            hint="use an encoder made of these modules",
        )
    if "Normalize" in kinds and [kind for kind in kinds if kind != _MASK][-1] != "Normalize":
        raise ArtifactError(f"{folder}/modules.json normalises before another module, expected it last")
    place = kinds.index("Pooling") if "Pooling" in kinds else len(kinds)
    inner = [n for n, kind in enumerate(kinds) if kind in ("Dense", "LayerNorm")]
    if inner and inner[0] < place < inner[-1]:
        raise ArtifactError(
            f"{folder}/modules.json has layers before and behind Pooling, expected one of both"
        )
    weights_dir = folder / modules[0]["path"]
    config = read_config(weights_dir)
    transformer = next(map(_optional_json, sorted(weights_dir.glob("sentence_*_config.json"))), {})
    if "message" in (transformer.get("modality_config") or {}):
        raise ArtifactError(
            f"{folder} puts every text into its chat template, which this program does not do",
            hint="if it was trained on plain texts, save it with a tokenizer that has no chat template",
        )
    several = "Pooling" not in kinds
    pooling_config = {} if several else _optional_json(folder / modules[place]["path"] / "config.json")
    stated_prompts = own.get("prompts") or {}
    prompts = {str(name): str(text) for name, text in stated_prompts.items() if text}
    # Empty prompts are passed over: sentence-transformers 6 saves an empty "document" beside a "passage".
    # Where there are prompts for questions or passages, the default is that of other tasks.
    has_roles = any(name in stated_prompts for name in ("query", *PASSAGE_PROMPTS))
    default = "" if has_roles else prompts.get(own.get("default_prompt_name") or "", "")
    query = prompts.get("query", default)
    passage = passage_prompt(prompts, default)
    if (query or passage) and pooling_config.get("include_prompt") is False:
        raise ArtifactError(f"{folder} leaves prompts out of pooling, which this program does not do")
    limit = position_limit(config)
    lengths = (
        own.get("document_length"),
        transformer.get("document_length"),
        transformer.get("max_seq_length"),
    )
    length = min(int(next(filter(None, lengths), _tokenizer_limit(weights_dir))), limit)
    stated = str(own["similarity_fn_name"]).lower() if own.get("similarity_fn_name") else None
    if several and stated != "maxsim" and not {"Dense", _MASK}.intersection(kinds):
        raise ArtifactError(
            f"{folder} has no Pooling, which makes one vector of a text, and no Dense, which projects every "
            "token's vector for late interaction",
            hint="save the encoder with its Pooling module, or give the bare model's folder and a pooling",
        )
    # PyLate 1 wrote sentence-transformers' own default beside a late interaction.
    if stated not in ((None, "maxsim", "cosine", "dot") if several else (None, "cosine", "dot", "dot_score")):
        wanted = "MaxSim" if several else "cosine or dot"
        raise ArtifactError(f"{folder} compares vectors by {stated!r}, expected {wanted}")
    notes = _prefix_note(folder.name, config, query, passage)
    notes += truncation_notes(folder, own)
    if stated is None and "Normalize" not in kinds and not several:
        notes += (
            f"{folder.name} does not say whether it is compared by dot product or cosine; taking dot product",
        )
    normalize, interaction = "Normalize" in kinds or stated == "cosine", None
    if _MASK in kinds:
        mask = _optional_json(folder / modules[kinds.index(_MASK)]["path"] / "config.json")
        interaction = Interaction.from_modules(
            transformer, mask, limit=min(_tokenizer_limit(weights_dir), limit)
        )
    elif several:  # PyLate normalises without saying so, and its markers stand before the prompts
        query = str(own.get("query_prefix") or "") + query
        passage = str(own.get("document_prefix") or "") + passage
        normalize, interaction = normalize or own.get("normalize", True), Interaction.from_pylate(own)
    return EncoderSettings(
        kind="sentence-transformers",
        weights_dir=weights_dir,
        pooling="tokens" if several else _pooling(folder, pooling_config),
        normalize=normalize,
        max_length=length,
        query_prefix=query,
        passage_prefix=passage,
        layout=str(own.get("passage_layout") or "{title} {text}"),
        layers=tuple(_layer(folder / modules[n]["path"], kinds[n]) for n in inner),
        on_tokens=bool(inner) and inner[0] < place,
        segments=bool(own.get("token_types")),
        interaction=interaction,
        notes=notes,
    )


def _layer(folder: Path, kind: str) -> HeadLayer:
    """A Dense or LayerNorm module."""
    if kind == "LayerNorm":
        return HeadLayer("norm", folder, "norm.weight")
    config = _optional_json(folder / "config.json")
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in ACTIVATIONS or config.get("use_residual"):
        raise ArtifactError(
            f"{folder}: activation {activation!r}, residual {bool(config.get('use_residual'))} is not known",
            hint=f"known: {', '.join(ACTIVATIONS)}, without residual",
        )
    return HeadLayer("linear", folder, "linear.weight", activation)


def _pooling(folder: Path, config: dict[str, Any]) -> str:
    found = config.get("pooling_mode")
    names = [found] if isinstance(found, str) else list(found or [])
    names = names or [name for key, name in POOLING_KEYS.items() if config.get(key)]
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
    names = f"{name} {config.get('_name_or_path', '')}".lower().replace("/", "-").split("-")
    if query or passage or not any(part.startswith("e5") for part in names):
        return ()
    return (f'{name} looks like an E5 model: those need query_prefix="query: ", passage_prefix="passage: "',)
