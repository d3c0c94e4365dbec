"""Transformer encoders behind retrievers and readers: loading, attention, token vectors, pooling.

Shared by all networks on top of a BERT-like model, in training and in inference.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from rag.core.errors import ArtifactError, ConfigError
from rag.core.log import get_logger
from rag.runtime.model_files import (
    DIFFERENCE_FILE,
    backbone_state,
    read_config,
    refuse_own_code,
    weight_shapes,
    whole_model,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

ResultT = TypeVar("ResultT")

log = get_logger(__name__)

# The published Fusion-in-Decoder checkpoints were saved with a wrapper around the encoder of T5 and
# another around each of its blocks.
_FID_BLOCK = "encoder.encoder.block.0.module."
_FID_NAMES = {
    r"^encoder\.encoder\.block\.(\d+)\.module\.": r"encoder.block.\1.",
    r"^encoder\.encoder\.": "encoder.",
}
_BUFFERS = (
    "inv_freq",
    ".attn.bias",
    "masked_bias",
    "position_ids",
    "relative_attention_bias.weight",
)
_DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "dropout_rate",
)
# With narrow heads and short texts, torch's fused attention takes 1.3 times as long to train in
# bf16 on a CPU.
_PLAIN_ATTENTION = {
    "bert",
    "roberta",
    "electra",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "albert",
    "bart",
}


@contextmanager
def loading(
    problem: str,
    *,
    hint: str = "give a folder with config.json, model.safetensors and tokenizer files",
    kind: type[ArtifactError] = ArtifactError,
) -> Iterator[None]:
    """Turn transformers' errors inside the block into one error: `problem`, with the reason in
    brackets.

    Transformers' own reports are suppressed: callers report missing weights to the user.
    """
    reports = logging.getLogger("transformers")
    level = reports.level
    reports.setLevel(logging.ERROR)
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise kind(f"{problem} ({str(error)[:500]})", hint=hint) from error
    finally:
        reports.setLevel(level)


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of a model folder, completed by transformers; for a DPR tower that of its
    BERT.
    """
    fields = read_config(folder)
    if fields.pop("model_type") != "dpr":
        return transformers_config(folder)
    from transformers import BertConfig

    with loading(f"{folder}: transformers cannot load it"):
        return BertConfig(**fields)


def transformers_config(folder: Path) -> PreTrainedConfig:
    """The configuration of a model folder as a class of transformers.

    Raises:
        ArtifactError: there is none, or it is of a kind that cannot be opened.
    """
    from transformers import AutoConfig

    config = read_config(folder)
    with loading(f"{folder}: transformers cannot load it"):
        if whole_model(folder)[1]:
            return AutoConfig.for_model(**config)
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def load_backbone(
    folder: Path, *, train: bool = False, dropout: float | None = None, device: str = "cpu"
) -> PreTrainedModel:
    """The encoder of a model folder in fp32, without BERT's pooler.

    DPR's towers are BERT models under another name; of an encoder-decoder only the encoder is
    loaded.

    Args:
        train: prepare for training: training mode, and the attention that trains fastest.
        dropout: replaces the configuration's dropout probabilities, if given.
        device: device that the network will run on; it is returned on the CPU.

    Raises:
        ArtifactError: it cannot be loaded, or weights are missing.
        ConfigError: an encoder-decoder is to be trained.
    """
    from transformers import AutoModel, AutoModelForTextEncoding

    fields = read_config(folder)
    architecture = (fields.get("architectures") or [fields["model_type"]])[0]
    config = load_config(folder)
    set_dropout(config, dropout)
    attention = attention_for(config, device) if train else None
    options = {"dtype": torch.float32, "attn_implementation": attention}
    with loading(f"{folder}: transformers cannot load it"):
        if fields["model_type"] == "dpr" or (folder / DIFFERENCE_FILE).is_file():
            model: Any = AutoModel.from_config(config, **options)
            report = model.load_state_dict(backbone_state(folder), strict=False)
            check_names(folder, model, report.missing_keys, report.unexpected_keys, headless=True)
        else:
            # Sentence encoders of T5 come without the decoder that AutoModel would look for.
            auto_class = (
                AutoModelForTextEncoding if architecture.endswith("EncoderModel") else AutoModel
            )
            model, _ = load_network(auto_class, folder, config, headless=True, **options)
    if getattr(config, "is_encoder_decoder", False):
        if train:
            raise ConfigError(
                f"{folder} is a {architecture}, an encoder-decoder or the encoder of one; "
                "a bi-encoder is trained from an encoder alone",
                hint="start from another model, such as bert-base-uncased",
            )
        model = model.get_encoder()
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model.train(train)


def attention_for(config: PreTrainedConfig, device: str = "cpu") -> str | None:
    """Name of the attention that trains fastest on `device`, for `attn_implementation`; None: the
    default.
    """
    return "eager" if device == "cpu" and config.model_type in _PLAIN_ATTENTION else None


def set_dropout(config: PreTrainedConfig, dropout: float | None) -> None:
    """Replace a configuration's dropout probabilities, but for those of activations and heads that
    are 0.
    """
    if dropout is None:
        return
    for name, value in config.to_dict().items():
        if name in _DROPOUTS or ("dropout" in name and isinstance(value, float) and value):
            setattr(config, name, dropout)


def load_network(
    auto_class: Any,
    folder: Path,
    config: PreTrainedConfig,
    *,
    headless: bool = False,
    **options: Any,
) -> tuple[PreTrainedModel, list[str]]:
    """A network of transformers with all weights of a folder, in evaluation mode.

    Args:
        auto_class: the class of transformers that loads it.
        headless: what follows the encoder, BERT's pooler too, may be absent; see `check_names`.
        options: of `from_pretrained`.

    Returns:
        The network, and the names of the weights of its head that are drawn at random.

    Raises:
        ArtifactError: weights are missing, cannot be read, are no tensors, or no numbers.
    """
    # Damaged files are refused here, by name, before transformers reads them.
    names = weight_shapes(folder)
    # A file that the configuration names here would be read without being part of the model's
    # identity.
    config.transformers_weights = None
    whole, part = whole_model(folder)
    key_mapping = {rf"^rag\.{part}\.": ""} if part else None
    if any(name.startswith(_FID_BLOCK) for name in names):
        key_mapping = _FID_NAMES
    network, report = auto_class.from_pretrained(
        whole,
        config=config,
        key_mapping=key_mapping,
        weights_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        **options,
    )
    untrained = check_names(
        folder, network, report["missing_keys"], report["unexpected_keys"], headless=headless
    )
    _refuse_undefined(folder, network)
    return network, untrained


def _refuse_undefined(folder: Path, network: PreTrainedModel) -> None:
    """Refuse weights that are NaN or infinite, with which a reader would find no answer and say so."""
    for name, weight in network.named_parameters():
        # Numbers of one byte cannot be compared.
        if weight.is_floating_point() and weight.itemsize > 1:
            least, largest = weight.detach().aminmax()
            if not (least.isfinite() and largest.isfinite()):
                raise ArtifactError(
                    f"{folder} holds weights that are NaN or infinite, the first is {name}",
                    hint="copy or download it again; a training that diverges writes such weights",
                )


def check_names(
    folder: Path,
    network: PreTrainedModel,
    missing: Iterable[str],
    unexpected: Iterable[str],
    *,
    headless: bool = False,
) -> list[str]:
    """Refuse a checkpoint without all weights, which would be random, and warn of weights inside
    the network's layers that nothing reads. Heads of other tasks are passed over.

    Args:
        missing, unexpected: names of weights that the network has and the folder lacks, and the
            reverse.
        headless: weights outside the encoder, and those of BERT's pooler, may be missing: they are
            trained, or not used.

    Returns:
        The names that are missing and may be.
    """
    prefix = f"{network.base_model_prefix}."
    encoder = "" if network.base_model is network else prefix
    untrained: list[str] = []
    needed: list[str] = []
    for name in sorted(missing):
        is_outside = "pooler" in name or not name.startswith(encoder)
        names = untrained if headless and is_outside else needed
        names.append(name)
    refuse_missing(folder, needed)
    stacks = {_stack(name.removeprefix(prefix)) for name in network.state_dict()} - {""}
    ignored = [
        name
        for name in sorted(unexpected)
        if _stack(name.removeprefix(prefix)) in stacks and not name.endswith(_BUFFERS)
    ]
    if ignored:
        log.warning(
            "%s holds %d weights that the network of its config.json does not have, the first is %s: "
            "they are ignored",
            folder,
            len(ignored),
            ignored[0],
        )
    return untrained


def _stack(name: str) -> str:
    """The stack of layers that a weight belongs to, or "": `encoder.layer` of
    `encoder.layer.3.output`.
    """
    found = re.match(r"(.+?)\.\d+\.", name)
    return found[1] if found else ""


def refuse_missing(folder: Path, names: Sequence[str]) -> None:
    """Refuse a checkpoint without these weights, which would be random."""
    if not names:
        return
    config = read_config(folder)
    if "auto_map" in config:
        refuse_own_code(folder, config)
    raise ArtifactError(
        f"{folder} lacks {len(names)} weights that its config.json calls for, the first is {names[0]}",
        hint="copy or download it again; if they are still missing, the weights are those of another "
        "network",
    )


def reset_layers(model: torch.nn.Module, count: int, seed: int) -> None:
    """Give the upper `count` layers of an encoder random weights, as before any training."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    layers = list(max(stacks, key=len, default=[]))
    if count > len(layers):
        raise ConfigError(f"reset_layers is {count}, but the encoder has {len(layers)} layers")
    random = torch.Generator().manual_seed(seed)
    std = float(getattr(model.config, "initializer_range", 0.02))
    with torch.no_grad():
        for layer in layers[len(layers) - count :]:
            for name, tensor in layer.named_parameters():
                if tensor.ndim > 1:
                    # Drawn on the CPU, so that a seed gives the same weights on every device.
                    tensor.copy_(torch.empty(tensor.shape).normal_(0.0, std, generator=random))
                else:
                    tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def has_segments(config: PreTrainedConfig) -> bool:
    """Whether the model distinguishes first and second segments."""
    return int(getattr(config, "type_vocab_size", 0) or 0) > 1


def run_backbone(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, types: Tensor | None = None
) -> Tensor:
    """The model's last hidden states (n, L, H) for padded token ids.

    Args:
        ids, mask: (n, L) int64; the mask is 1 on tokens, 0 on padding.
        types: (n, L) int64 segments; left out where the model has none.
    """
    options = {}
    if types is not None and has_segments(model.config):
        options["token_type_ids"] = types
    return model(input_ids=ids, attention_mask=mask, **options)[0]


def pad(texts: Sequence[Any], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both (n, L) int64, padded on the right.

    Example:
        >>> ids, mask = pad([[5, 6], [7]], pad_id=0)
        >>> ids.tolist(), mask.tolist()
        ([[5, 6], [7, 0]], [[1, 1], [1, 0]])
    """
    lengths = torch.tensor(list(map(len, texts)))
    mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (n, L)
    flat = torch.from_numpy(np.concatenate(texts)).long()
    return torch.full(mask.shape, pad_id).masked_scatter_(mask, flat), mask.long()


def plan_batches(lengths: Sequence[int], *, max_rows: int, max_tokens: int) -> list[list[int]]:
    """Split rows into batches of similar length, longest first, so that the last batches are the
    small ones.

    Ties keep their order, so the plan depends on `lengths` alone.

    Args:
        max_tokens: most tokens in a batch, padding not counted; one longer row makes a batch of its
            own.

    Example:
        >>> plan_batches([3, 9, 3, 5], max_rows=2, max_tokens=10)
        [[1], [3, 0], [2]]
    """
    batches: list[list[int]] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if not batches or len(batches[-1]) >= max_rows or tokens + lengths[row] > max_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(row)
        tokens += lengths[row]
    return batches


def run_by_length(
    run: Callable[[list[int]], ResultT],
    lengths: Sequence[int],
    limits: tuple[int, int],
    *,
    map_batches: Callable[..., Iterable[ResultT]] = map,
    done: Callable[[int], object] = lambda count: None,
) -> tuple[list[ResultT], list[int]]:
    """Run batches of rows of similar length; the results, and the place in them of each row.

    Args:
        run: computes the rows of one batch.
        limits: most rows and most tokens of a batch, see `plan_batches`.
        map_batches: applies `run` to the batches, such as the `map` of a pool of threads.
        done: gets the number of rows of each batch that is finished.

    Example:
        >>> parts, order = run_by_length(lambda rows: [f"row {row}" for row in rows], [3, 9, 5], (2, 10))
        >>> parts
        [['row 1'], ['row 2', 'row 0']]
        >>> flat = sum(parts, [])
        >>> [flat[place] for place in order]
        ['row 0', 'row 1', 'row 2']
    """
    batches = plan_batches(lengths, max_rows=limits[0], max_tokens=limits[1])
    results = []
    for batch, result in zip(batches, map_batches(run, batches), strict=True):
        done(len(batch))
        results.append(result)
    rows = np.fromiter(chain.from_iterable(batches), np.int64)
    return results, np.argsort(rows).tolist()
