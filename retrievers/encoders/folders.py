"""Read the settings in an encoder's folder: pooling, layers, prompts, lengths; without torch.

Folders of sentence-transformers (`MultiVectorEncoder` and `StaticEmbedding` too), model2vec, DPR,
ANCE, FiD's retrievers and plain transformers are read. Pooling and prefixes that do not fit the weights cause no
error, only worse retrieval: what the folder states is taken from it, and a warning names what had
to be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import ArtifactError
from rag.core.files import atomic_write_json, read_json
from rag.runtime.model_files import position_limit, read_config, refuse_own_code, weight_shapes
from retrievers.encoders.guesses import guess_prefixes, is_named
from retrievers.encoders.settings import (
    FID_LAYOUT,
    FID_PREFIX,
    MASKS,
    NO_LIMIT,
    PAIR,
    POOLINGS,
    STATIC,
    STATIC_LENGTH,
    TCT_COLBERT,
    TITLE_AND_TEXT,
    TOKENS,
    EncoderSettings,
    HeadLayer,
    Interaction,
)

LIBRARY_FILE = "config_sentence_transformers.json"
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")  # classes of torch.nn
_DPR_MAX_LENGTH = 256
_PLAIN_LENGTH = 512  # tokens of checkpoints that are no encoders yet; some can read 100,000
_MASK = "MultiVectorMask"  # sentence-transformers' module for late interaction
_MODULES = re.compile(  # those of sentence-transformers that are read here, in their order
    r"StaticEmbedding( Normalize)?"
    r"|Transformer( Dense| LayerNorm)* Pooling( Normalize)?"
    r"|Transformer Pooling( Dense| LayerNorm)*( Normalize)?"
    rf"|Transformer( Dense| LayerNorm)*( Normalize)? {_MASK}( Normalize)?"
)
_HIDDEN = "last_hidden_state"
_SIMILARITIES = ("", "cosine", "dot", "dot_score", "maxsim", "meanmaxsim")
_LIBRARIES = ("sentence_transformers.", "pylate.")  # whose modules are known
_LATE_INTERACTION_HINT = (
    "write it anew once, as the folder that is read here: sentence_transformers' "
    "MultiVectorEncoder(FOLDER).save_pretrained(DIR)"
)
# Arguments of sentence-transformers' module Transformer that change no number
_HARMLESS = (
    "attn_implementation",
    "dtype",
    "padding_side",
    "torch_dtype",
    "trust_remote_code",
    "use_cache",
    "use_fast",
)
# Fields of tokenizer_config.json, the attributes of BERT's normaliser that they set, and defaults
_BERT_RULES = (
    ("do_lower_case", "lowercase", True),
    ("strip_accents", "strip_accents", None),
    ("tokenize_chinese_chars", "handle_chinese_chars", True),
)
_PASSAGE_PROMPTS = ("document", "passage", "corpus")
# architecture → the tower that it is
_TOWERS = {"DPRContextEncoder": "passage", "DPRQuestionEncoder": "question"}


def read_settings(folder: Path) -> EncoderSettings:
    """Read the settings of an encoder's folder, of any kind that this module names.

    Raises:
        ArtifactError: it is not an encoder, or has parts this program does not know.
    """
    library = _optional_json(folder / LIBRARY_FILE)
    if library.get("truncate_dim"):
        raise ArtifactError(
            f"{folder} cuts its vectors (truncate_dim)", hint="save it with whole vectors"
        )
    if (folder / "modules.json").is_file():
        return _read_sentence_transformers(folder, library)
    config = _optional_json(folder / "config.json")
    # model2vec's first releases name no model_type
    if config.get("model_type") == "model2vec" or "apply_zipf" in config:
        return _read_static(folder, folder, library, normalize=bool(config.get("normalize")))
    config = read_config(folder)
    _refuse_other_models(folder, config)
    if config["model_type"] == "dpr":
        return _read_dpr(folder, config)
    return _read_checkpoint(folder, config)


def _read_dpr(folder: Path, config: Mapping[str, Any]) -> EncoderSettings:
    """One of DPR's towers, perhaps with a projection."""
    projections: list[str] = []
    if config.get("projection_dim"):
        names = weight_shapes(folder)
        projections = [name for name in names if name.endswith("encode_proj.weight")]
    towers = [_TOWERS[name] for name in config.get("architectures") or () if name in _TOWERS]
    return EncoderSettings(
        kind="dpr",
        weights_dir=folder,
        pooling="cls",
        normalize=False,
        layout=PAIR,
        max_length=min(_DPR_MAX_LENGTH, position_limit(dict(config))),
        tower=towers[0] if towers else "",
        straight_apostrophes=True,
        layers=tuple(HeadLayer("linear", folder, name) for name in projections[:1]),
    )


def _read_checkpoint(folder: Path, config: dict[str, Any]) -> EncoderSettings:
    """A folder of transformers alone: ANCE's by its weights, FiD's by its settings, else a network
    without a head.
    """
    longest = min(tokenizer_limit(folder), position_limit(config))
    limit = min(longest, _PLAIN_LENGTH)
    names = weight_shapes(folder)
    if "embeddingHead.weight" in names and "norm.weight" in names:
        return EncoderSettings(
            kind="ance",
            weights_dir=folder,
            pooling="cls",
            normalize=False,
            max_length=limit,
            layers=(
                HeadLayer("linear", folder, "embeddingHead.weight"),
                HeadLayer("norm", folder, "norm.weight"),
            ),
        )
    if "indexing_dimension" in config:
        return _read_fid(folder, config, limit)
    pooling = "mean"
    guess = (
        "vectors are the mean of their tokens', not normalised; if it was trained otherwise: "
        "--pooling cls or lasttoken, --normalize"
    )
    if is_named(folder, "tct-colbert"):
        pooling = TCT_COLBERT
        guess = (
            "texts are read as TCT-ColBERT reads them, by its name; if it is another model: "
            "--pooling mean, cls or lasttoken"
        )
    guesses = {"pooling": guess, **guess_prefixes(folder, ())}
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


def _read_fid(folder: Path, config: Mapping[str, Any], limit: int) -> EncoderSettings:
    """A retriever of Fusion-in-Decoder, perhaps with a linear layer and LayerNorm on every token."""
    if not (config.get("apply_question_mask") and config.get("apply_passage_mask")):
        raise _unsupported(folder, "counts padding in the means of its vectors")
    layers: tuple[HeadLayer, ...] = ()
    if config.get("projection"):
        layers = (
            HeadLayer("linear", folder, "proj.weight"),
            HeadLayer("norm", folder, "norm.weight"),
        )
    return EncoderSettings(
        kind="fid",
        weights_dir=folder,
        pooling="cls" if config.get("extract_cls") else "mean",
        normalize=False,
        max_length=min(limit, int(config.get("passage_maxlength") or limit)),
        layout=FID_LAYOUT,
        query_prefix=FID_PREFIX,
        on_tokens=True,
        layers=layers,
    )


def _read_sentence_transformers(folder: Path, library: Mapping[str, Any]) -> EncoderSettings:
    """From modules.json, the modules' folders and config_sentence_transformers.json.

    Args:
        library: the content of config_sentence_transformers.json.
    """
    if library.get("model_type") == "CrossEncoder":
        raise ArtifactError(
            f"{folder} is a cross-encoder: it scores pairs and makes no vectors",
            hint=f"order hits with it: `rag ask … --rerank {folder}`",
        )
    modules = _read_modules(folder)
    kinds = [kind for kind, _ in modules]
    weights_dir = folder / modules[0][1]
    if kinds[0] == "StaticEmbedding":
        return _read_static(folder, weights_dir, library, normalize="Normalize" in kinds)
    configs = [_optional_json(folder / path / "config.json") for _, path in modules]
    transformer = transformer_settings(weights_dir)
    prompts = _prompts(library)
    prefixes = _prefixes(library, prompts)
    similarity = _similarity(folder, library)
    is_late = _MASK in kinds  # late interaction: several vectors per text
    _refuse_unsupported(folder, transformer, configs)
    if not is_late and any(map(transformer.get, ("query_length", "document_length"))):
        raise _unsupported(folder, "cuts questions and passages at lengths of their own")
    guesses = {} if any(prefixes.values()) else guess_prefixes(folder, prompts)
    is_normalized = "Normalize" in kinds or similarity == "cosine"
    if not (is_normalized or is_late or similarity):
        is_normalized = not is_named(folder, "dot")
        guesses["normalize"] = _guessed_similarity(is_normalized)
    layout = str(library.get("passage_layout") or "")
    if not layout and is_named(folder, "dpr"):
        guesses["layout"] = f"DPR reads a passage as title [SEP] text: --layout {PAIR}"
    limit = position_limit(read_config(weights_dir))
    longest = min(tokenizer_limit(weights_dir), limit)
    stated_length = transformer.get("document_length") or transformer.get("max_seq_length")
    # Without pooling, all layers work on the vectors of tokens.
    pooling = TOKENS
    pooling_position = len(kinds)
    interaction = None
    if is_late:
        interaction = _read_interaction(transformer, configs[kinds.index(_MASK)], longest)
    else:
        pooling_position = kinds.index("Pooling")
        pooling = _read_pooling(folder, configs[pooling_position])
    layers = []
    for (kind, path), config in zip(modules, configs, strict=True):
        if kind in ("Dense", "LayerNorm"):
            layers.append(_read_layer(folder / path, kind, config))
    return EncoderSettings(
        kind="sentence-transformers",
        weights_dir=weights_dir,
        pooling=pooling,
        normalize=is_normalized,
        max_length=min(int(stated_length or longest), limit),
        **prefixes,
        layout=layout or TITLE_AND_TEXT,
        layers=tuple(layers),
        on_tokens=pooling_position > 1,
        interaction=interaction,
        straight_apostrophes=bool(library.get("straight_apostrophes")),
        prompts=prompts,
        guesses=guesses,
    )


def write_modules(folder: Path, modules: Mapping[str, str], library: Mapping[str, object]) -> None:
    """Write what tells sentence-transformers how to read a folder.

    Args:
        modules: folder of each module, in order → its class within sentence_transformers.
        library: the content of config_sentence_transformers.json.
    """
    entries = []
    for number, (path, kind) in enumerate(modules.items()):
        class_name = f"sentence_transformers.{kind}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": class_name})
    atomic_write_json(folder / "modules.json", entries)
    atomic_write_json(folder / LIBRARY_FILE, library)


def _refuse_unsupported(
    folder: Path, transformer: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse what sentence-transformers does with texts and this program does not."""
    modalities = transformer.get("modality_config") or {}
    if "message" in modalities:
        raise _unsupported(folder, "puts every text into its chat template")
    output = modalities.get("text", {}).get("method_output_name", _HIDDEN)
    if output != _HIDDEN:
        raise _unsupported(folder, f"takes {output} of its network, expected {_HIDDEN}")
    if any(config.get("include_prompt") is False for config in configs):
        raise _unsupported(folder, "leaves prompts out of pooling")


def _unsupported(folder: Path, reason: str) -> ArtifactError:
    return ArtifactError(
        f"{folder} {reason}", hint="use an encoder without this, or change its folder"
    )


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module in modules.json, in an order that is read here."""
    modules = []
    for module in read_json(folder / "modules.json"):
        name = str(module["type"])
        if not name.startswith(_LIBRARIES):
            refuse_own_code(folder, {"architectures": [name]})
        kind = name.rpartition(".")[2]
        # Dropout acts in training alone.
        if kind != "Dropout":
            modules.append((kind, str(module.get("path") or "")))
    kinds = [kind for kind, _ in modules]
    if _MODULES.fullmatch(" ".join(kinds)) is None:
        raise ArtifactError(
            f"{folder} has the modules {', '.join(kinds)}, expected StaticEmbedding, or Transformer with "
            f"Pooling or {_MASK}, Dense and LayerNorm on one side of it, and Normalize last",
            hint=_hint_for_modules(kinds),
        )
    return modules


def _hint_for_modules(kinds: Sequence[str]) -> str:
    """What to do with a folder whose modules are not read."""
    if kinds[:1] == ["Transformer"] and "Pooling" not in kinds:  # PyLate's
        return _LATE_INTERACTION_HINT
    if "SpladePooling" in kinds:
        return "SPLADE's sparse vectors are not searched here: use a dense encoder, or BM25"
    return "use an encoder made of these modules"


def _guessed_similarity(is_cosine: bool) -> str:
    """What was guessed of a similarity that a folder does not state, and the option that sets it."""
    if is_cosine:
        return "vectors are compared by cosine; if it was trained by inner products: --no-normalize"
    return "vectors are compared by inner product, by its name; if it is for cosine: --normalize"


def _refuse_other_models(folder: Path, config: dict[str, Any]) -> None:
    """Refuse DPR's reader, RAG as a whole, and checkpoints of ColBERT's own code."""
    architectures = config.get("architectures") or ()
    if config["model_type"] == "rag":
        raise ArtifactError(
            f"{folder} is a RAG model, of a question encoder and a generator",
            hint="name its question encoder beside a passage encoder: "
            f"'facebook/dpr-ctx_encoder-single-nq-base + {folder}/question_encoder'",
        )
    if "DPRReader" in architectures:
        raise ArtifactError(
            f"{folder} is a reader and makes no vectors",
            hint=f"answer with it: `rag ask … --reader {folder}`",
        )
    if "HF_ColBERT" in architectures:
        if "auto_map" in config:
            refuse_own_code(folder, config)
        raise ArtifactError(
            f"{folder} is a checkpoint of ColBERT's own code", hint=_LATE_INTERACTION_HINT
        )


def _read_static(
    folder: Path, weights_dir: Path, library: Mapping[str, Any], *, normalize: bool
) -> EncoderSettings:
    """A static encoder of sentence-transformers or of model2vec.

    Sentence-transformers reads whole texts, unless tokenizer.json cuts them; model2vec cuts them, and
    leaves unknown tokens out.
    """
    config = _optional_json(folder / "config.json")
    prompts = _prompts(library)
    similarity = _similarity(folder, library)
    is_model2vec = not (folder / "modules.json").is_file()
    longest = STATIC_LENGTH
    if not is_model2vec:
        cut = _optional_json(weights_dir / "tokenizer.json").get("truncation") or {}
        longest = cut.get("max_length", NO_LIMIT)
    guesses = {}
    if not (normalize or similarity or is_model2vec):
        normalize = True
        guesses["normalize"] = _guessed_similarity(True)
    return EncoderSettings(
        kind=STATIC,
        weights_dir=weights_dir,
        pooling=STATIC,
        normalize=normalize or similarity == "cosine",
        max_length=int(config.get("max_length", longest) or NO_LIMIT),
        layout=str(config.get("passage_layout") or TITLE_AND_TEXT),
        straight_apostrophes=bool(library.get("straight_apostrophes")),
        skips_unknown=is_model2vec,
        **_prefixes(library, prompts),
        prompts=prompts,
        guesses=guesses,
    )


def transformer_settings(folder: Path) -> dict[str, Any]:
    """What sentence-transformers states beside a network's weights: lengths, lower-casing; {} if
    nothing.

    Raises:
        ArtifactError: arguments of classes of transformers that change what is computed.
    """
    settings = next(map(_optional_json, sorted(folder.glob("sentence_*_config.json"))), {})
    for name, arguments in settings.items():
        if name.endswith(("_args", "_kwargs")) and set(arguments or ()).difference(_HARMLESS):
            raise _unsupported(folder, f"states {name} for {', '.join(arguments)}")
    return settings


def _similarity(folder: Path, library: Mapping[str, Any]) -> str:
    """The similarity that a folder of sentence-transformers states, or ""."""
    similarity = str(library.get("similarity_fn_name") or "").lower()
    if similarity not in _SIMILARITIES:
        raise _unsupported(folder, f"compares vectors by {similarity!r}, expected cosine or dot")
    return similarity


def _prompts(library: Mapping[str, Any]) -> dict[str, str]:
    """A folder's prompts that are not empty."""
    return {str(name): str(text) for name, text in (library.get("prompts") or {}).items() if text}


def _prefixes(library: Mapping[str, Any], prompts: Mapping[str, str]) -> dict[str, Any]:
    """Prefixes of questions and passages from a folder's prompts.

    Sentence-transformers 6 saves an empty "document" beside a "passage". Where either has a
    prompt, the default is that of other tasks.
    """
    default = prompts.get(library.get("default_prompt_name") or "", "")
    if {"query", *_PASSAGE_PROMPTS}.intersection(library.get("prompts") or ()):
        default = ""
    passage = next((prompts[name] for name in _PASSAGE_PROMPTS if name in prompts), default)
    return {"query_prefix": prompts.get("query", default), "passage_prefix": passage}


def _read_interaction(
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
    unknown = []
    for name, value in {**padding, **mask}.items():
        if value not in supported.get(name, (value,)):
            unknown.append(f"{name} {value!r}")
    if unknown:
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


def _read_layer(folder: Path, kind: str, config: Mapping[str, Any]) -> HeadLayer:
    """A Dense or LayerNorm module."""
    if kind == "LayerNorm":
        return HeadLayer("norm", folder, "norm.weight")
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS or config.get("use_residual"):
        raise ArtifactError(
            f"{folder}: activation {activation!r}, residual {bool(config.get('use_residual'))} is not known",
            hint=f"known: {', '.join(_ACTIVATIONS)}, without residual",
        )
    has_bias = "linear.bias" in weight_shapes(folder)
    if config.get("bias", has_bias) != has_bias:
        raise ArtifactError(
            f"{folder} has {'a' if has_bias else 'no'} linear.bias, its config.json says {config['bias']}",
            hint="copy or download the folder again",
        )
    return HeadLayer("linear", folder, "linear.weight", activation)


def _read_pooling(folder: Path, config: Mapping[str, Any]) -> str:
    """The pooling of a module, one of `POOLINGS`.

    Sentence-transformers 6 names it; folders of before have a switch for each, such as
    pooling_mode_cls_token.
    """
    names = config.get("pooling_mode") or []
    if isinstance(names, str):
        names = [names]
    if not names:
        prefix = "pooling_mode_"
        switches = [name for name, is_on in config.items() if name.startswith(prefix) and is_on]
        names = [re.sub("_tokens?$", "", name.removeprefix(prefix)) for name in switches]
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


def bert_rules(folder: Path) -> dict[str, bool | None]:
    """What tokenizer_config.json says of BERT's normaliser, by the names of its attributes.

    It decides for tokenizers of BERT's kind, which transformers builds anew, and where it names
    their class by their defaults; the plain classes take their tokenizer.json as it is.
    """
    config = _tokenizer_config(folder)
    kind = config.get("tokenizer_class")
    rules: dict[str, bool | None] = {}
    if kind in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return rules
    for name, attribute, default in _BERT_RULES:
        if kind or name in config:
            rules[attribute] = config.get(name, default)
    return rules


def cut_side(folder: Path) -> str:
    """The side on which tokenizer_config.json says to cut a text."""
    return str(_tokenizer_config(folder).get("truncation_side") or "right")


def tokenizer_limit(folder: Path) -> int:
    """Most tokens of a text by tokenizer_config.json."""
    return int(min(_tokenizer_config(folder).get("model_max_length") or NO_LIMIT, NO_LIMIT))


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    return _optional_json(folder / "tokenizer_config.json")
