"""The settings in an encoder's folder: pooling, layers, prompts, lengths; read without torch.

Folders of sentence-transformers (`MultiVectorEncoder` and `StaticEmbedding` too), model2vec, DPR,
ANCE and plain transformers are read. Pooling and prefixes that do not fit the weights cause no
error, only worse
retrieval: what the folder states is taken from it, and a warning names what had to be guessed.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from indexers.protocols import EncoderIdentity
from rag.core.errors import ArtifactError, ConfigError, with_hub_names
from rag.core.files import read_json
from rag.runtime.model_files import (
    folder_tokenizer,
    position_limit,
    read_config,
    refuse_own_code,
    tokenizer_files,
    weight_files,
    weight_shapes,
    weights_sha256,
)
from retrievers.encoders.guesses import (
    guess_by_dot,
    guess_prefixes,
    is_dpr,
    is_tct_colbert,
    short_name,
)

PAIR = "pair"  # the layout of title and text in two segments
POOLINGS = (
    "cls",
    "mean",
    "lasttoken",
    "tokens",
    "tct-colbert",
)  # see `rag.runtime.backbone.pool`; "tokens" keeps them all
# TCT-ColBERT's pooling, and its way to read texts: a marker and no [SEP], questions filled with masks
# that count, and the mean of what follows the marker. No folder states any of it.
# Source: Lin et al. 2021, "In-Batch Negatives for Knowledge Distillation with Tightly-Coupled
# Teachers for Dense Retrieval", and the authors' encoders in Pyserini.
TCT_COLBERT = "tct-colbert"
TCT_QUESTION_MARKER = "[CLS] [Q] "
TCT_PASSAGE_MARKER = "[CLS] [D] "
TCT_MARKER_TOKENS = 4  # [CLS], the bracket, its letter, the bracket
TCT_QUESTION_TOKENS = 36
STATIC = "static"  # the pooling of static encoders, which have a vector per token and no network
STATIC_LENGTH = 512  # tokens that count of those trained here: the mean of more says little
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")  # classes of torch.nn
MASKS = ("[MASK]", "<mask>")
COLBERT_MARKERS = ("[unused0]", "[unused1]")  # of questions and passages
_DPR_MAX_LENGTH = 256
_PLAIN_LENGTH = 512  # tokens of checkpoints that are no encoders yet; some can read 100,000
_MASK = "MultiVectorMask"  # sentence-transformers' module for late interaction
_MODULES = re.compile(  # those of sentence-transformers that are read here, in their order
    r"StaticEmbedding( Normalize)?"
    r"|Transformer( Dense| LayerNorm)* Pooling( Normalize)?"
    r"|Transformer Pooling( Dense| LayerNorm)*( Normalize)?"
    rf"|Transformer( Dense| LayerNorm)*( Normalize)? {_MASK}( Normalize)?"
)
_LIBRARIES = ("sentence_transformers.", "pylate.")  # whose modules are known
_LATE_INTERACTION = (
    "write it anew once, as the folder that is read here: sentence_transformers' "
    "MultiVectorEncoder(FOLDER).save_pretrained(DIR)"
)
# architecture → the tower that it is
_TOWERS = {"DPRContextEncoder": "passage", "DPRQuestionEncoder": "question"}
_HUGE = 1 << 20  # tokenizers write absurd lengths for "no limit"


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A layer behind the transformer: a linear one with one of `ACTIVATIONS`, or a LayerNorm.

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
        seen = "" if self.attended else "not "
        filled = f", filled with masks that are {seen}seen" if self.expanded else ""
        skipped = f" without {''.join(self.skipped)}" if self.skipped else ""
        return f"questions of {self.query_tokens} tokens{filled}; passages{skipped}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    """How texts become vectors, and where the weights are; what an encoder's folder records.

    Attributes:
        kind: "sentence-transformers", "dpr", "ance", "transformers" or "static".
        weights_dir: folder of config.json and model.safetensors.
        pooling: one of `POOLINGS`, or `STATIC`.
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
    layout: str = "{title} {text}"
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
        if self.pooling == "tokens":
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

    def override(self, **changes: Any) -> EncoderSettings:
        """A copy with the changes that are neither None nor "auto"; `query_tokens` is one of
        `interaction`.

        Raises:
            ConfigError: a value that this encoder does not take.
        """
        made = {name: value for name, value in changes.items() if value not in (None, "auto")}
        made["guesses"] = {name: text for name, text in self.guesses.items() if name not in made}
        for name in ("query_prefix", "passage_prefix"):
            if name in made:
                made[name] = self.prompts.get(made[name], made[name])
        allowed = (STATIC,) if self.pooling == STATIC else POOLINGS
        if made.get("pooling", self.pooling) not in allowed:
            raise ConfigError(
                f"pooling is {made['pooling']!r}, expected one of {', '.join(allowed)}"
            )
        if "max_length" in made and not 2 <= made["max_length"] <= self.max_length_limit():
            raise ConfigError(
                f"max_length is {made['max_length']}, this encoder takes 2 to {self.max_length_limit()}"
            )
        query_tokens = made.pop("query_tokens", None)
        if made.get("pooling", self.pooling) != "tokens":
            return replace(self, **made, interaction=None)
        how = self.interaction or Interaction()
        if self.interaction is None:  # ColBERT's markers, where the vocabulary has them
            vocabulary = folder_tokenizer(self.weights_dir).get_vocab()
            if all(marker in vocabulary for marker in COLBERT_MARKERS):
                for name, marker in zip(
                    ("query_prefix", "passage_prefix"), COLBERT_MARKERS, strict=True
                ):
                    made[name] = made.get(name) or f"{marker} "
        made.setdefault("normalize", self.normalize or self.pooling != "tokens")
        made["interaction"] = replace(how, query_tokens=query_tokens or how.query_tokens)
        return replace(self, **made)

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
        sizes = (config.get(name) for name in ("hidden_size", "dim", "d_model", "n_embd"))
        return int(next(filter(None, sizes)))

    def max_length_limit(self) -> int:
        """Maximum number of tokens that the position embeddings allow."""
        return _HUGE if self.pooling == STATIC else position_limit(read_config(self.weights_dir))

    def identity(self, name: str, question: EncoderSettings | None = None) -> EncoderIdentity:
        """The identity of an encoder of this passage tower, and this question tower if it is
        another.
        """
        sides = [self] if question is None else [self, question]
        tokenizers = dict.fromkeys(
            file for side in sides for file in tokenizer_files(side.weights_dir)
        )
        folders = [
            f
            for side in sides
            for f in (side.weights_dir, *(layer.folder for layer in side.layers))
        ]
        files = [file for folder in dict.fromkeys(folders) for file in weight_files(folder)]
        return EncoderIdentity(
            name=name,
            weights_sha256=weights_sha256(files),
            tokenizer_sha256=weights_sha256(tokenizers),
            dim=self.dim,
            pooling=self.pooling,
            normalize=self.normalize,
            query_prefix=sides[-1].query_prefix,
            passage_prefix=self.passage_prefix,
            max_length=self.max_length,
            similarity=self.similarity,
            layout=self.layout,
            interaction="" if self.interaction is None else self.interaction.describe(),
        )


def read_settings(folder: Path) -> EncoderSettings:
    """Read a folder of any of these kinds.

    Raises:
        ArtifactError: it is not an encoder, or has parts this program does not know.
    """
    own = _optional_json(folder / "config_sentence_transformers.json")
    if own.get("truncate_dim"):
        raise ArtifactError(
            f"{folder} cuts its vectors (truncate_dim)", hint="save it with whole vectors"
        )
    if (folder / "modules.json").is_file():
        return _sentence_transformers(folder, own)
    config = _optional_json(folder / "config.json")
    # model2vec's first releases name no model_type
    if config.get("model_type") == "model2vec" or "apply_zipf" in config:
        return _static(folder, folder, own, normalize=bool(config.get("normalize")))
    config = read_config(folder)
    _refuse_other_programs(folder, config)
    architectures = config.get("architectures") or ()
    if config["model_type"] == "dpr":
        shapes = weight_shapes(folder) if config.get("projection_dim") else {}
        projection = next((name for name in shapes if name.endswith("encode_proj.weight")), None)
        return EncoderSettings(
            kind="dpr",
            weights_dir=folder,
            pooling="cls",
            normalize=False,
            layout=PAIR,
            max_length=min(_DPR_MAX_LENGTH, position_limit(config)),
            tower=next((_TOWERS[name] for name in architectures if name in _TOWERS), ""),
            straight_apostrophes=True,
            layers=(HeadLayer("linear", folder, projection),) if projection else (),
        )
    return _checkpoint(folder, config)


def _checkpoint(folder: Path, config: dict[str, Any]) -> EncoderSettings:
    """A folder of transformers alone: ANCE's by its weights, else a network without a head."""
    longest = min(tokenizer_limit(folder), position_limit(config))
    limit = min(longest, _PLAIN_LENGTH)
    names = weight_shapes(folder)
    if "embeddingHead.weight" in names and "norm.weight" in names:
        layers = (
            HeadLayer("linear", folder, "embeddingHead.weight"),
            HeadLayer("norm", folder, "norm.weight"),
        )
        return EncoderSettings(
            kind="ance",
            weights_dir=folder,
            pooling="cls",
            normalize=False,
            max_length=limit,
            layers=layers,
        )
    pooling = "mean"
    guess = (
        "vectors are the mean of their tokens', not normalised; if it was trained otherwise: "
        "--pooling cls or lasttoken, --normalize"
    )
    if is_tct_colbert(short_name(folder)):
        pooling = TCT_COLBERT
        guess = (
            "texts are read as TCT-ColBERT reads them, by its name; if it is another model: "
            "--pooling mean, cls or lasttoken"
        )
    guesses = {"pooling": guess, **_guessed_prefixes(folder, {}, {})}
    if limit < longest:
        guesses["max_length"] = f"texts are cut at {limit} of {longest} tokens: --max-length N"
    return EncoderSettings(
        kind="transformers",
        weights_dir=folder,
        pooling=pooling,
        normalize=False,
        max_length=limit,
        guesses=guesses,
    )


def _sentence_transformers(folder: Path, own: Mapping[str, Any]) -> EncoderSettings:
    """From modules.json and the modules' folders; `own` is config_sentence_transformers.json."""
    if own.get("model_type") == "CrossEncoder":
        raise ArtifactError(
            f"{folder} is a cross-encoder: it scores pairs and makes no vectors",
            hint=f"order hits with it: --rerank {folder}",
        )
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    weights_dir = folder / modules[0][1]
    if kinds[0] == "StaticEmbedding":
        return _static(folder, weights_dir, own, normalize="Normalize" in kinds)
    configs = [_optional_json(folder / place / "config.json") for _, place in modules]
    transformer = transformer_settings(weights_dir)
    prompts = _prompts(own)
    prefixes = _prefixes(own, prompts)
    is_late = _MASK in kinds  # late interaction: several vectors per text
    similarity = str(own.get("similarity_fn_name") or "").lower()
    has_kept_prompts = not any(config.get("include_prompt") is False for config in configs)
    if "message" in (transformer.get("modality_config") or {}):
        raise _unread(folder, "puts every text into its chat template")
    if any(prefixes.values()) and not has_kept_prompts:
        raise _unread(folder, "leaves prompts out of pooling")
    if not is_late and similarity not in ("", "cosine", "dot", "dot_score"):
        raise _unread(folder, f"compares vectors by {similarity!r}, expected cosine or dot")
    guesses = _guessed_prefixes(folder, prefixes, prompts)
    is_normalized = "Normalize" in kinds or similarity == "cosine"
    if not (is_normalized or is_late or similarity):
        is_normalized = not guess_by_dot(short_name(folder))
        guesses["normalize"] = _guessed_similarity(is_normalized)
    layout = str(own.get("passage_layout") or "")
    if not layout and is_dpr(short_name(folder)):
        guesses["layout"] = f"DPR reads a passage as title [SEP] text: --layout {PAIR}"
    pooled_at = len(kinds) if is_late else kinds.index("Pooling")
    layers_at = [n for n, kind in enumerate(kinds) if kind in ("Dense", "LayerNorm")]
    limit = position_limit(read_config(weights_dir))
    longest = min(tokenizer_limit(weights_dir), limit)
    stated_length = transformer.get("document_length") or transformer.get("max_seq_length")
    return EncoderSettings(
        kind="sentence-transformers",
        weights_dir=weights_dir,
        pooling="tokens" if is_late else _pooling(folder, configs[pooled_at]),
        normalize=is_normalized,
        max_length=min(int(stated_length or longest), limit),
        **prefixes,
        layout=layout or "{title} {text}",
        layers=tuple(_layer(folder / modules[n][1], kinds[n], configs[n]) for n in layers_at),
        on_tokens=bool(layers_at) and layers_at[0] < pooled_at,
        interaction=_interaction(transformer, configs[kinds.index(_MASK)], longest)
        if is_late
        else None,
        straight_apostrophes=bool(own.get("straight_apostrophes")),
        prompts=prompts,
        guesses=guesses,
    )


def _unread(folder: Path, reason: str) -> ArtifactError:
    return ArtifactError(
        f"{folder} {reason}", hint="use an encoder without this, or change its folder"
    )


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module in modules.json, in an order that is read here."""
    modules = []
    for module in read_json(folder / "modules.json"):
        kind = _module_kind(folder, str(module["type"]))
        if kind != "Dropout":  # which acts in training alone
            modules.append((kind, str(module.get("path") or "")))
    kinds = [kind for kind, _ in modules]
    if _MODULES.fullmatch(" ".join(kinds)) is None:
        is_pylate = kinds[:1] == ["Transformer"] and "Pooling" not in kinds
        raise ArtifactError(
            f"{folder} has the modules {', '.join(kinds)}, expected StaticEmbedding, or Transformer with "
            f"Pooling or {_MASK}, Dense and LayerNorm on one side of it, and Normalize last",
            hint=_LATE_INTERACTION if is_pylate else _other_modules(kinds),
        )
    return modules


def _other_modules(kinds: Sequence[str]) -> str:
    """A hint for a folder of modules that are not read."""
    if "SpladePooling" in kinds:
        return "SPLADE's sparse vectors are not searched here: use a dense encoder, or BM25"
    return "use an encoder made of these modules"


def _guessed_similarity(is_cosine: bool) -> str:
    """The sentence about a similarity that a folder of sentence-transformers does not state."""
    if is_cosine:
        return "vectors are compared by cosine; if it was trained by inner products: --no-normalize"
    return "vectors are compared by inner product, by its name; if it is for cosine: --normalize"


def _guessed_prefixes(
    folder: Path, prefixes: Mapping[str, str], prompts: Mapping[str, str]
) -> dict[str, str]:
    """The guess that texts get no prefix, where the model seems to need some."""
    guess = "" if any(prefixes.values()) else guess_prefixes(short_name(folder), prompts)
    return {"query_prefix": guess} if guess else {}


def _refuse_other_programs(folder: Path, config: dict[str, Any]) -> None:
    """Refuse DPR's reader, and checkpoints of ColBERT's own code."""
    architectures = config.get("architectures") or ()
    if "DPRReader" in architectures:
        raise ArtifactError(
            f"{folder} is a reader and makes no vectors", hint=f"answer with it: --reader {folder}"
        )
    if "HF_ColBERT" in architectures:
        if "auto_map" in config:
            refuse_own_code(folder, config)
        raise ArtifactError(
            f"{folder} is a checkpoint of ColBERT's own code", hint=_LATE_INTERACTION
        )


def _module_kind(folder: Path, name: str) -> str:
    """The kind of a module by the name of its class; classes of the folder's own code are refused."""
    if not name.startswith(_LIBRARIES):
        refuse_own_code(folder, {"architectures": [name]})
    return name.rpartition(".")[2]


def _static(
    folder: Path, weights_dir: Path, own: Mapping[str, Any], *, normalize: bool
) -> EncoderSettings:
    config = _optional_json(folder / "config.json")
    prompts = _prompts(own)
    similarity = str(own.get("similarity_fn_name") or "").lower()
    # sentence-transformers reads whole texts; model2vec cuts them, and leaves unknown tokens out
    is_model2vec = not (folder / "modules.json").is_file()
    longest = STATIC_LENGTH if is_model2vec else _HUGE
    guesses = {}
    if not (normalize or similarity or is_model2vec):
        normalize = True
        guesses["normalize"] = _guessed_similarity(True)
    return EncoderSettings(
        kind=STATIC,
        weights_dir=weights_dir,
        pooling=STATIC,
        normalize=normalize or similarity == "cosine",
        max_length=int(config.get("max_length", longest) or _HUGE),
        layout=str(config.get("passage_layout") or "{title} {text}"),
        straight_apostrophes=bool(own.get("straight_apostrophes")),
        skips_unknown=is_model2vec,
        **_prefixes(own, prompts),
        prompts=prompts,
        guesses=guesses,
    )


def transformer_settings(folder: Path) -> dict[str, Any]:
    """What sentence-transformers states beside a network's weights: lengths, lower-casing; {} if
    nothing.
    """
    return next(map(_optional_json, sorted(folder.glob("sentence_*_config.json"))), {})


def _prompts(own: Mapping[str, Any]) -> dict[str, str]:
    """A folder's prompts that are not empty."""
    return {str(name): str(text) for name, text in (own.get("prompts") or {}).items() if text}


def _prefixes(own: Mapping[str, Any], prompts: Mapping[str, str]) -> dict[str, Any]:
    """Prefixes of questions and passages from a folder's prompts.

    Sentence-transformers 6 saves an empty "document" beside a "passage". Where either has a
    prompt, the default is that of other tasks.
    """
    of_passages = ("document", "passage", "corpus")
    has_roles = any(name in (own.get("prompts") or {}) for name in ("query", *of_passages))
    default = "" if has_roles else prompts.get(own.get("default_prompt_name") or "", "")
    passage = next((prompts[name] for name in of_passages if name in prompts), default)
    return {"query_prefix": prompts.get("query", default), "passage_prefix": passage}


def _interaction(
    transformer: Mapping[str, Any], mask: Mapping[str, Any], limit: int
) -> Interaction:
    """From the modules Transformer and MultiVectorMask of sentence-transformers'
    `MultiVectorEncoder`.
    """
    padding = transformer.get("query_expansion") or {}
    supported: dict[str, tuple[Any, ...]] = {
        "strategy": ("fixed",),
        "token": (None, *MASKS),
        "skiplist_tasks": (None, [], ["document"]),
        "keep_only_token_ids": (None, []),
    }
    stated = {name: value for name, value in {**padding, **mask}.items() if name in supported}
    if unknown := [
        f"{name} {value!r}" for name, value in stated.items() if value not in supported[name]
    ]:
        raise ArtifactError(
            f"late interaction with {', '.join(unknown)} is not known here",
            hint='expected questions of a fixed length, filled with masks ("strategy": "fixed"), or not '
            "filled; tokens may be left out of passages alone, by skiplist_words",
        )
    return Interaction(
        query_tokens=int(padding.get("length") or transformer.get("query_length") or limit),
        expanded=bool(padding),
        attended=bool(padding.get("attend")),
        skipped=tuple(mask.get("skiplist_words") or ()),
        marked=False,
    )


def _layer(folder: Path, kind: str, config: Mapping[str, Any]) -> HeadLayer:
    """A Dense or LayerNorm module."""
    if kind == "LayerNorm":
        return HeadLayer("norm", folder, "norm.weight")
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in ACTIVATIONS or config.get("use_residual"):
        raise ArtifactError(
            f"{folder}: activation {activation!r}, residual {bool(config.get('use_residual'))} is not known",
            hint=f"known: {', '.join(ACTIVATIONS)}, without residual",
        )
    return HeadLayer("linear", folder, "linear.weight", activation)


def _pooling(folder: Path, config: Mapping[str, Any]) -> str:
    stated = config.get("pooling_mode")
    names = [stated] if isinstance(stated, str) else list(stated or [])
    if (
        not names
    ):  # before sentence-transformers 6: pooling_mode_cls_token, pooling_mode_lasttoken, …
        begin = "pooling_mode_"
        switches = [
            key.removeprefix(begin) for key, on in config.items() if key.startswith(begin) and on
        ]
        names = [name.removesuffix("_tokens").removesuffix("_token") for name in switches]
    if len(names) != 1 or names[0] not in POOLINGS:
        raise ArtifactError(
            f"{folder} pools by {' + '.join(map(str, names)) or 'nothing'}, expected {' or '.join(POOLINGS)}"
        )
    return str(names[0])


def _optional_json(path: Path) -> dict[str, Any]:
    value = read_json(path) if path.is_file() else {}
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: expected a JSON object, found {str(value)[:40]}")
    return value


def lower_casing(folder: Path) -> bool | None:
    """Whether tokenizer_config.json says to lower-case; None where it does not decide.

    It decides for tokenizers of BERT's kind, which transformers builds anew; the plain classes
    take their tokenizer.json as it is.
    """
    stated = _optional_json(folder / "tokenizer_config.json")
    if stated.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return None
    return stated.get("do_lower_case")


def tokenizer_limit(folder: Path) -> int:
    """Most tokens of a text by tokenizer_config.json."""
    limit = _optional_json(folder / "tokenizer_config.json").get("model_max_length") or _HUGE
    return int(min(limit, _HUGE))
