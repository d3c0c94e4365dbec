"""The network that training starts from: an encoder with new heads, or a trained reader."""

from typing import Any

from torch import nn

from rag.core.errors import ConfigError
from rag.runtime.model_files import embedded_encoder_dir, position_limit
from readers.extractive.files import load_described, load_span_model
from readers.extractive.model import SpanModel, load_question_answering


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
        dropout, freeze_word_embeddings, skim_layer: see `ReaderTrainConfig`.
        passage_head: whether a passage logit is trained.

    Raises:
        ArtifactError: nothing there can be trained.
        MismatchedArtifactError: the tokenizer is not that of the encoder, or gives no offsets.
        ConfigError: the stages or layers do not fit the encoder.
    """
    if (loaded := load_span_model(encoder)) is None:
        folder = encoder or str(embedded_encoder_dir())
        config, tokenizer = load_described(folder)
        is_reader = any(name.endswith("ForQuestionAnswering") for name in config.architectures or ())
        model = load_question_answering(folder, config) if is_reader else SpanModel.from_encoder(folder, seed)
    else:
        model, tokenizer = loaded
    model.add_heads(passage=passage_head, skim_layer=skim_layer, seed=seed)
    network: Any = model.encoder
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
