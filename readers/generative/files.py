"""Open a generative checkpoint, and check that it is complete and fits its tokenizer."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from rag.config import load_config
from rag.core.errors import (
    ArtifactError,
    ConfigError,
    IncompleteArtifactError,
    MismatchedArtifactError,
)
from rag.runtime.backbone import (
    attention_for,
    load_network,
    loading,
    set_dropout,
    transformers_config,
)
from rag.runtime.model_files import model_folder, read_config, transformers_tokenizer
from readers.generative.causal import FRAME_TOKENS, Causal, causal_layout, causal_limit
from readers.generative.model import Seq2Seq, answer_limit, longest_row
from readers.generative.settings import GeneratorManifest, GeneratorSettings, as_literal
from readers.manifest import READER_FILE, check_files, load_manifest

_HINT = "give a folder of `rag train generator`, or a BART- or T5-like or causal checkpoint with its tokenizer"


def load_generator(
    name_or_path: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    trains: bool = False,
    dropout: float | None = None,
    **changes: Any,
) -> tuple[Seq2Seq, GeneratorManifest]:
    """A folder of `rag train generator`, or any sequence-to-sequence or causal checkpoint with its
    tokenizer.

    Args:
        trains: whether it will be trained, by the attention that trains fastest.
        dropout: replaces the configuration's dropout probabilities, if given.
        changes: fields of `GeneratorSettings` to replace.

    Returns:
        The network, and the content of its `reader.json`, or its default.

    Raises:
        ArtifactError: no such checkpoint, of another kind, cut short, or with another tokenizer.
        ConfigError: rows longer than the model's positions, or unknown settings.
    """
    folder = Path(name_or_path)
    manifest = load_manifest(GeneratorManifest, folder) if (folder / READER_FILE).exists() else None
    if manifest is not None:
        check_files(manifest.checksums, folder, "tokenizer.json")
    model, tokenizer = _load(name_or_path, dropout, device if trains else None)
    is_causal = not model.config.is_encoder_decoder
    if manifest is None:
        layout = _default_layout(model_folder(name_or_path), model, tokenizer)
        manifest = GeneratorManifest(name=str(name_or_path), settings=GeneratorSettings(**layout))
    settings = load_config(GeneratorSettings, overrides={**dict(manifest.settings), **changes})
    check_rows(model, settings)
    model = model.to(device, dtype)
    network = (
        Causal(model, tokenizer, settings.prompt_end) if is_causal else Seq2Seq(model, tokenizer)
    )
    return network, manifest.model_copy(update={"settings": settings})


def _default_layout(folder: Path, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Settings of a checkpoint that was not trained here: by its config.json, FiD's, or those by
    which RAG's retriever of transformers lays out passages.

    RAG's generator gets questions as the tokenizer of the question encoder, which knows no
    capitals, writes them.
    """
    if not model.config.is_encoder_decoder:
        return dict(causal_layout(tokenizer))
    config = read_config(folder)
    if config["model_type"] != "rag":
        usual = GeneratorSettings().passage_tokens
        return {"passage_tokens": min(usual, longest_row(model) or usual)}
    is_sequence = config["architectures"] == ["RagSequenceForGeneration"]
    prefix = as_literal(config["generator"].get("prefix") or "")
    title_end = as_literal(config.get("title_sep", " / "))
    text_end = as_literal(config.get("doc_sep", " // "))
    return {
        "mode": "rag-sequence" if is_sequence else "rag-token",
        "template": f"{prefix}{{title}}{title_end}{{text}}{text_end}{{question}}",
        "lower_case": True,
        "passage_tokens": config.get("max_combined_length", 300),
        "max_passages": config.get("n_docs", 5),
    }


def check_rows(model: PreTrainedModel, settings: GeneratorSettings) -> None:
    """Refuse rows and answers that the model has no positions for."""
    limits = {"passage_tokens": longest_row(model), "answer_tokens": answer_limit(model)}
    if not model.config.is_encoder_decoder:  # prompt and answer share them
        limits = {"passage_tokens": causal_limit(model) - settings.answer_tokens - FRAME_TOKENS}
    for name, most in limits.items():
        if most is not None and getattr(settings, name) > most:
            raise ConfigError(
                f"{name} is {getattr(settings, name)}, the model has {most} positions for them",
                hint=f"set {name} to {most} or less, or take a model that reads more; longer rows are cut",
            )


def _load(name_or_path: str | Path, dropout: float | None, train_on: str | None) -> tuple[Any, Any]:
    """The model in fp32, and its tokenizer."""
    folder = model_folder(name_or_path)
    is_rag = read_config(folder)["model_type"] == "rag"
    if is_rag:
        folder = folder / "generator"
    config = transformers_config(folder)
    architecture = (getattr(config, "architectures", None) or [""])[0]
    is_causal = not config.is_encoder_decoder and architecture.endswith(
        ("ForCausalLM", "LMHeadModel")
    )
    if not config.is_encoder_decoder and not is_causal:
        raise ArtifactError(
            f"{name_or_path}: a {config.model_type} model, expected an encoder–decoder such as bart or t5, "
            "or a causal language model",
            hint=_HINT,
        )
    set_dropout(config, dropout)
    tokenizer = transformers_tokenizer(folder)
    # The question and the start of a chat stand at the beginning of a row.
    tokenizer.truncation_side = "right"
    hint = "the checkpoint is damaged or cut short: copy the whole folder again"
    with loading(
        f"{name_or_path}: the weights cannot be read", hint=hint, kind=IncompleteArtifactError
    ):
        kind: Any = AutoModelForCausalLM if is_causal else AutoModelForSeq2SeqLM
        attention = attention_for(config, train_on) if train_on else None
        model, _ = load_network(
            kind, folder, config, attn_implementation=attention, dtype=torch.float32
        )
    if is_rag and getattr(config, "bos_token_id", None) is not None:
        # RAG trains on labels that begin with <s> and feeds them to the decoder as they are.
        model.config.decoder_start_token_id = config.bos_token_id
        model.generation_config.forced_bos_token_id = None
    embedded = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > embedded:
        raise MismatchedArtifactError(
            f"{name_or_path}: the tokenizer knows {len(tokenizer)} tokens, the model embeds {embedded}",
            hint="take the tokenizer of the model the checkpoint was trained from",
        )
    return model, tokenizer
