"""The gradient cache: what it keeps, how often it encodes, what it leaves untouched."""

import torch

from retrievers.encoders.vectors import Vectors
from retrievers.training.step import ChunkedEncoding

TEXTS = [torch.full((length,), float(length)) for length in (3, 9, 1, 7, 5)]


class Encoder(torch.nn.Module):
    """Sums a text; remembers what it was given and whether a graph was made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 4)
        self.calls: list[tuple[list[int], bool]] = []

    def forward(self, texts: list[torch.Tensor]) -> Vectors:
        vectors = self.layer(torch.stack([text.sum() for text in texts])[:, None])
        self.calls.append(([len(text) for text in texts], vectors.requires_grad))
        return Vectors(vectors)


def test_kept_graphs_are_computed_once_and_cached_ones_twice() -> None:
    encoder = Encoder()
    flushed = []
    for keep, graphs in ((True, [True] * 3), (False, [False] * 3 + [True] * 3)):
        encoder.calls.clear()
        encoding = ChunkedEncoding(encoder, TEXTS, limits=(2, 1000), keep_graphs=keep, seed=1)
        encoding.backward(Vectors(torch.ones(5, 4)), lambda: flushed.append(1))
        assert [graph for _, graph in encoder.calls] == graphs
        assert [lengths for lengths, _ in encoder.calls][:3] == [[9, 7], [5, 3], [1]]
    assert len(flushed) == 6
