r"""Make a generator from an extractive reader: both sides get its layers, the decoder starts as a
pointer.

BART's layers are BERT's: attention, residual and norm, feed-forward, residual and norm. So the
encoder's weights move over as they are; its first token type is added to the positions. Each
decoder layer takes the self-attention of an encoder layer twice, as its own and as its
cross-attention. Word embeddings are shared by both sides and the output. In the last decoder
layer's cross-attention every head's key becomes the logit of "the answer starts here", every
query is constant, and the values become

    W = argmin_W Σ_j ‖W·h_j − (e_j − ē)‖² + λ‖W‖²

of the encoder states h_j, in closed form: the map from a state to the embedding e_j of its word
(minus the mean embedding ē). The layer's feed-forward part starts at zero. Everything is
trained afterwards.

Source:
    Rothe, Narayan, Severyn 2020, "Leveraging Pre-trained Checkpoints for Sequence Generation
    Tasks".

Note:
    There the cross-attention starts at random; here it starts from self-attention, which finds
    similar tokens from the beginning. Layer norms add 1e-5 to the variance where BERT adds 1e-12.
"""

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerBase

from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.backbone import attention_for
from readers.extractive.model import SpanModel
from readers.generative.model import Seq2Seq

_LAYER = {  # BART's name of each part of a layer, and BERT's
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
_RIDGE = 1e-3
_LOUDNESS = 40.0  # norm of what is handed on, beside a residual stream of about 9
_SHARPNESS = 1.5  # factor on the span head's logits
_LAST_NORM = 0.7  # gain before the output: flatter than 1, so that wrong words cost less at first
_KEPT = 0.3  # share of the other keys that stays


def warm_start(
    reader: SpanModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Sequence[int]],
    *,
    decoder_layers: int | None = None,
    dropout: float = 0.1,
    device: str = "cpu",
) -> Seq2Seq:
    """A BART whose encoder is that of `reader`, and whose decoder copies from where its answers
    start, see the module.

    Args:
        tokenizer: of `reader`; [CLS] begins an answer and [SEP] ends it.
        rows: token ids of some thousand tokens, in the layout of training, from which W is
            computed.
        decoder_layers: evenly spaced layers of the encoder, the last among them; None takes all.
        dropout: dropout of hidden states and attention in training.
        device: on which it will be trained.

    Raises:
        ArtifactError: the encoder is not BERT's, or too few tokens to compute W.
        ConfigError: more decoder layers than the encoder has.
    """
    source = reader.encoder.config
    if source.model_type != "bert":
        raise ArtifactError(
            f"a {source.model_type} encoder cannot be warm-started from, expected a bert one",
            hint="name a BERT-like reader, or a sequence-to-sequence checkpoint as model",
        )
    layers = source.num_hidden_layers
    count = decoder_layers or layers
    if count > layers:
        raise ConfigError(
            f"decoder_layers is {count}, expected 1 to {layers}, the encoder's layers"
        )
    config = _bart_config(source, tokenizer, count, dropout)
    model = BartForConditionalGeneration(config).eval()
    model.load_state_dict(_renamed(reader.encoder.state_dict(), layers, count))
    attention = attention_for(config, device)
    if attention is not None:
        model.set_attn_implementation(attention)
    seq2seq = Seq2Seq(model, tokenizer)
    _point(seq2seq, reader.qa_outputs.weight[0], rows)
    return seq2seq


def _bart_config(bert: Any, tokenizer: Any, decoder_layers: int, dropout: float) -> BartConfig:
    return BartConfig(
        vocab_size=bert.vocab_size,
        max_position_embeddings=bert.max_position_embeddings,
        d_model=bert.hidden_size,
        encoder_layers=bert.num_hidden_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=bert.num_attention_heads,
        decoder_attention_heads=bert.num_attention_heads,
        encoder_ffn_dim=bert.intermediate_size,
        decoder_ffn_dim=bert.intermediate_size,
        activation_function=bert.hidden_act,
        dropout=dropout,
        attention_dropout=dropout,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        decoder_start_token_id=tokenizer.cls_token_id,
        forced_eos_token_id=None,
        tie_word_embeddings=True,
    )


def _renamed(bert: dict[str, Tensor], layers: int, decoder_layers: int) -> dict[str, Tensor]:
    """BERT's weights under BART's names."""
    words = bert["embeddings.word_embeddings.weight"]
    first_type = bert["embeddings.token_type_embeddings.weight"][0]
    positions = bert["embeddings.position_embeddings.weight"] + first_type
    # BART's positions begin at row 2.
    positions = torch.cat([positions.new_zeros(2, positions.shape[1]), positions])
    state = {"final_logits_bias": words.new_zeros(1, len(words))}
    for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens"):
        state[f"{name}.weight"] = words
    state["lm_head.weight"] = words
    origins = {"encoder": list(range(layers)), "decoder": []}
    for number in range(decoder_layers):
        origins["decoder"].append((number + 1) * layers // decoder_layers - 1)
    for side, kind in product(origins, ("weight", "bias")):
        norm = bert[f"embeddings.LayerNorm.{kind}"]
        state[f"model.{side}.embed_positions.weight"] = positions
        state[f"model.{side}.layernorm_embedding.{kind}"] = norm
        for (number, origin), (name, old_name) in product(enumerate(origins[side]), _LAYER.items()):
            layer = f"model.{side}.layers.{number}"
            weight = bert[f"encoder.layer.{origin}.{old_name}.{kind}"]
            state[f"{layer}.{name}.{kind}"] = weight
            if side == "decoder":  # its cross-attention starts as its self-attention
                state[f"{layer}.{name.replace('self', 'encoder')}.{kind}"] = weight
    return state


@torch.no_grad()
def _point(seq2seq: Seq2Seq, start: Tensor, rows: Sequence[Sequence[int]]) -> None:
    """Set the last decoder layer so that it copies from where the start logit, weights (D,), is
    high.
    """
    words = seq2seq.model.get_input_embeddings().weight.float()  # (V, D)
    size = words.shape[1]
    ids = torch.tensor(list(chain.from_iterable(rows)))
    if len(ids) < 4 * size:
        raise ArtifactError(
            f"{len(ids)} tokens are too few to start from, expected at least {4 * size}"
        )
    memory = seq2seq.encode([[row] for row in rows])
    states = memory.states[memory.mask.bool()].double()  # (T, D), in the order of `ids`
    targets = (words - words.mean(0))[ids].double()
    squares = states.T @ states + _RIDGE * len(states) * torch.eye(size, dtype=torch.float64)
    handed = torch.linalg.solve(squares, states.T @ targets)  # (D, D), from the right
    handed *= _LOUDNESS / (states @ handed).norm(dim=1).mean()

    layer = seq2seq.model.model.decoder.layers[-1]
    attention = layer.encoder_attn
    attention.v_proj.weight.copy_(torch.eye(size))
    attention.out_proj.weight.copy_(handed.T)
    attention.q_proj.weight.zero_()
    attention.k_proj.weight.mul_(_KEPT)
    for part in (attention.v_proj, attention.out_proj, attention.q_proj, attention.k_proj):
        part.bias.zero_()
    firsts = torch.arange(attention.num_heads) * attention.head_dim  # one dimension of every head
    attention.k_proj.weight[firsts] = start.to(attention.k_proj.weight)
    attention.q_proj.bias[firsts] = _SHARPNESS * attention.head_dim**0.5
    layer.fc2.weight.zero_()
    layer.fc2.bias.zero_()
    for norm, gain in ((layer.encoder_attn_layer_norm, 1.0), (layer.final_layer_norm, _LAST_NORM)):
        norm.weight.fill_(gain)
        norm.bias.zero_()
