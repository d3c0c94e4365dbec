"""The network that training starts from, an encoder with new heads or a trained reader; and averaging of
weights with those of other readers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer

from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.backbone import loading
from rag.runtime.model_files import embedded_encoder_dir, position_limit
from readers.extractive.files import check_tokenizer, load_parts
from readers.extractive.model import SpanModel
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.extractive.tokens import check_offsets
from readers.extractive.training.config import ReaderModelConfig
from readers.manifest import READER_FILE, Calibration, load_manifest

Other = tuple[float, Mapping[str, torch.Tensor]]
"""A reader's share, and its weights by name."""


def start_model(
    config: ReaderModelConfig, *, longest: int, seed: int, passage_head: bool = False, fact_head: bool = False
) -> tuple[SpanModel, Any]:
    """Load `config.encoder`, an encoder or a reader, with the heads that are asked for, and its tokenizer.

    Args:
        longest: tokens of the longest row.
        seed: random seed of new heads.
        passage_head, fact_head: further heads.

    Raises:
        ArtifactError: nothing there can be trained.
        MismatchedArtifactError: the tokenizer is not that of the encoder.
        ConfigError: the stages or layers do not fit the encoder, or the tokenizer gives no offsets.
    """
    folder = config.encoder or str(embedded_encoder_dir())
    hint = "give a Hugging Face name, or a folder with configuration, weights and tokenizer"
    with loading(f"{folder}: no encoder with a tokenizer there", hint=hint):
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
    if (Path(folder) / READER_FILE).exists() or _answers_questions(folder):
        loaded = load_parts(folder).model
        if not isinstance(loaded, SpanModel):
            raise ArtifactError(
                f"{folder} holds a {type(loaded).__name__}, expected an encoder or a reader with a span head",
                hint="start from the encoder that it was made from",
            )
        model = loaded
    else:
        model = SpanModel.from_encoder(folder, seed=seed)
    model.add_heads(
        passage=config.answer_types or passage_head, skim_layer=config.skim_layer, facts=fact_head, seed=seed
    )
    _check(folder, model, tokenizer, longest)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = config.dropout
    encoder: Any = model.encoder
    if config.freeze_word_embeddings:
        encoder.get_input_embeddings().weight.requires_grad_(False)
    return model, tokenizer


def kept_ranking(config: ReaderModelConfig) -> tuple[ReaderSettings, Calibration]:
    """Ranking, efforts and confidence of the reader that training goes on from.

    Raises:
        ConfigError: it is no folder of `rag train reader`, or has outputs that the trained reader lacks.
    """
    folder = Path(config.encoder or "")
    if not config.encoder or not (folder / READER_FILE).exists():
        raise ConfigError(
            f"keep_ranking needs a reader to go on from, found {config.encoder or 'the embedded encoder'}",
            hint="--from names a folder of `rag train reader`",
        )
    manifest = load_manifest(ReaderManifest, folder)
    for name in ("answer_types", "skim_layer", "question_tokens", "title_tokens"):
        if (here := getattr(config, name)) != (there := getattr(manifest.settings, name)):
            raise ConfigError(f"keep_ranking: {name} is {here} here, and {there} in {folder}")
    return manifest.settings, manifest.calibration


def _answers_questions(folder: str) -> bool:
    try:
        names = AutoConfig.from_pretrained(folder).architectures or ()
    except (OSError, ValueError, KeyError):
        return False  # the encoder's loader says what is wrong
    return any(name.endswith("ForQuestionAnswering") for name in names)


def _check(folder: str, model: SpanModel, tokenizer: Any, row_tokens: int) -> None:
    check_offsets(folder, tokenizer)
    encoder: Any = model.encoder
    check_tokenizer(folder, tokenizer, encoder.config)
    longest = position_limit(encoder.config.to_dict())
    if row_tokens > longest:
        raise ConfigError(
            f"rows have {row_tokens} tokens, the encoder reads at most {longest}",
            hint="lower full_tokens and max_tokens (mlm.joint_tokens of `rag train mlm` and `realm`)",
        )


def other_readers(shares: Mapping[str, float], weights: Mapping[str, torch.Tensor]) -> list[Other]:
    """Load the readers that `weights` are to be averaged with.

    Args:
        shares: folder or name → share.
        weights: weights of the network that is trained.

    Raises:
        ArtifactError: there is no reader.
        ConfigError: a reader has another network.
    """
    found: list[Other] = []
    for source, share in shares.items():
        other = load_parts(source).model.state_dict()
        odd = [name for name in other.keys() & weights.keys() if other[name].shape != weights[name].shape]
        if odd or not other.keys() & weights.keys():
            raise ConfigError(
                f"average: {source} is another network ({', '.join(odd[:3]) or 'no weight in common'})",
                hint="weights can be averaged of readers that went on from the same one",
            )
        found.append((share, other))
    return found


def averaged(weights: Mapping[str, torch.Tensor], others: Sequence[Other]) -> dict[str, torch.Tensor]:
    """Each weight averaged over the readers that have it, in proportion to their shares.

    Example:
        >>> one = {"w": torch.tensor([1.0]), "new": torch.tensor([5.0])}
        >>> averaged(one, [(0.4, {"w": torch.tensor([2.0])})])
        {'w': tensor([1.4000]), 'new': tensor([5.])}

    Source: Wortsman et al. 2022, "Model soups" and "Robust fine-tuning of zero-shot models".
    """
    rest = 1.0 - sum(share for share, _ in others)
    mixed = dict(weights)
    for name, own in weights.items():
        having = [(rest, own), *((share, found[name]) for share, found in others if name in found)]
        if own.is_floating_point() and len(having) > 1:
            total = sum(share for share, _ in having)
            parts = [share / total * one.to(own.device, torch.float32) for share, one in having]
            mixed[name] = torch.stack(parts).sum(0)
    return mixed
