"""A decoder that begins as a pointer: it looks where an extractive reader would, and says what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rag.core.errors import ArtifactError
from readers.generative.model import Seq2Seq

__all__ = ["start_as_pointer"]

_RIDGE = 1e-3
_LOUDNESS = 40.0  # norm of what is handed on, beside a residual stream of about 9
_SHARPNESS = 1.5  # factor on the span head's logits
_LAST_NORM = 0.7  # gain before the output: flatter than 1, so that wrong words cost less at first
_KEPT = 0.3  # share of the other keys that stays


@torch.no_grad()
def start_as_pointer(seq2seq: Seq2Seq, start: Tensor, rows: Sequence[Sequence[int]]) -> None:
    r"""Set the last decoder layer so that its cross-attention points and copies, before any training.

    Every head's key gets the logit of "the answer starts here" and every query asks for it; the values become

        W = argmin_W Σ_j ‖W·h_j − (e_j − ē)‖² + λ‖W‖²

    of the encoder states h_j, in closed form: what turns a state back into the embedding e_j of its word
    (less the mean embedding ē). The layer's feed-forward begins as nothing. All of it is trained afterwards.

    Args:
        seq2seq: a BART that was warm-started from the encoder of an extractive reader.
        start: (D,) weights of that reader's start logit.
        rows: token ids of some thousand tokens, laid out as they will be.

    Raises:
        ArtifactError: too few tokens to fit W.
    """
    model: Any = seq2seq.model
    words = model.get_input_embeddings().weight.float()  # (V, D)
    size = words.shape[1]
    ids = torch.tensor([token for row in rows for token in row], device=words.device)
    if len(ids) < 4 * size:
        raise ArtifactError(f"{len(ids)} tokens are too few to start from, expected at least {4 * size}")
    memory = seq2seq.encode([[row] for row in rows])
    states = memory.states[memory.mask.bool()].double()  # (T, D), in the order of `ids`
    wanted = (words - words.mean(0))[ids].double()
    squares = states.T @ states + _RIDGE * len(states) * torch.eye(size, dtype=torch.float64)
    handed = torch.linalg.solve(squares, states.T @ wanted)  # (D, D), from the right
    handed *= _LOUDNESS / (states @ handed).norm(dim=1).mean()

    layer = model.model.decoder.layers[-1]
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
