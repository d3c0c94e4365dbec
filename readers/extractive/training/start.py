"""The network that training starts from: an encoder with new heads, or a trained reader."""

from typing import Any

from torch import nn
from transformers import AutoConfig, AutoTokenizer

from rag.core.errors import ConfigError
from rag.runtime.backbone import loading
from rag.runtime.model_files import embedded_encoder_dir, position_limit
from readers.extractive.files import check_tokenizer, load_span_model
from readers.extractive.model import SpanModel, load_question_answering
from readers.extractive.tokens import check_offsets


def start_model(
    encoder: str | None,
    *,
    longest: int,
    seed: int,
    dropout: float = 0.0,
    freeze_word_embeddings: bool = True,
    passage_head: bool = False,
    skim_layer: int = 0,
) -> tuple[SpanModel, Any]:
    """Load an encoder or a reader with the heads that training needs, and its tokenizer.

    Args:
        encoder: Hugging Face name or folder; None is the embedded encoder.
        longest: tokens of the longest row.
        seed: random seed of new heads.
        dropout: dropout of hidden states and attention weights.
        freeze_word_embeddings: leave the word embedding matrix as it is.
        passage_head: whether a passage logit is trained.
        skim_layer: number of the layer with an early head, see `ReaderTrainConfig`.

    Raises:
        ArtifactError: nothing there can be trained.
        MismatchedArtifactError: the tokenizer is not that of the encoder.
        ConfigError: the stages or layers do not fit the encoder, or the tokenizer gives no offsets.
    """
    folder = encoder or str(embedded_encoder_dir())
    if (loaded := load_span_model(encoder)) is not None:
        model, tokenizer = loaded
    else:
        hint = "give a Hugging Face name, or a folder with configuration, weights and tokenizer"
        with loading(f"{folder}: no encoder with a tokenizer there", hint=hint):
            config = AutoConfig.from_pretrained(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
        if any(name.endswith("ForQuestionAnswering") for name in config.architectures or ()):
            model = load_question_answering(folder, config)
        else:
            model = SpanModel.from_encoder(folder, seed=seed)
    model.add_heads(passage=passage_head, skim_layer=skim_layer, seed=seed)
    network: Any = model.encoder
    check_offsets(folder, tokenizer)
    check_tokenizer(folder, tokenizer, network.config)
    if longest > (positions := position_limit(network.config.to_dict())):
        raise ConfigError(
            f"rows have {longest} tokens, the encoder reads at most {positions}",
            hint="lower full_tokens and max_tokens (joint_tokens of `rag train mlm` and `realm`)",
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    if freeze_word_embeddings:
        network.get_input_embeddings().weight.requires_grad_(False)
    return model, tokenizer
