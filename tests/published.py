"""Tiny models whose config.json has the fields of the published ones: what is absent there is
absent here.

Sizes are shrunk, nothing is added: a T5 has no `bos_token_id`, a BART forces its first token and
brings the settings of the summaries it was made for, DistilBERT calls its width `dim`.
"""

import json
import shutil
import string
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.tiny_reader import WORDS, tiny_roberta_tokenizer, tiny_tokenizer

CONFIGS = Path(__file__).parent / "published_configs"
BART_SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 96,
}


def _configs(folder: str) -> dict[str, dict[str, Any]]:
    files = sorted((CONFIGS / folder).glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


ENCODERS = _configs("encoders")
"""Encoders by name."""
SEQ2SEQ = _configs("seq2seq")
"""Sequence-to-sequence models by name."""


def published_encoder(folder: Path, name: str, task: str = "Model", **more: Any) -> Path:
    """A folder with the named model's config.json, random weights, and a tokenizer of its kind.

    Args:
        task: what transformers' Auto classes end in, such as "ModelForQuestionAnswering".
        more: further fields of config.json.
    """
    pairs = ENCODERS[name]["model_type"] in ("roberta", "xlm-roberta", "mpnet")
    tokenizer = tiny_roberta_tokenizer() if pairs else tiny_tokenizer()
    stated = {**ENCODERS[name], **more, "architectures": [task.replace("Model", "Any", 1)]}
    _write(
        folder,
        getattr(transformers, f"Auto{task}"),
        tokenizer,
        {**stated, "vocab_size": len(tokenizer)},
    )
    return folder


def published_dpr(folder: Path, kind: Any, **more: Any) -> Any:
    """Write one of DPR's networks, with its tokenizer, and return it.

    Args:
        kind: its class, such as `transformers.DPRReader`.
    """
    tokenizer = tiny_tokenizer()
    stated = {**ENCODERS["bert-base-uncased"], "vocab_size": len(tokenizer), **more}
    del stated["model_type"]
    network = kind(transformers.DPRConfig(**stated)).eval()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return network


def published_rag(folder: Path, kind: Any, generator: str) -> Path:
    """A folder as of facebook/rag-token-nq: two networks, and their tokenizers in two sub-folders.

    Args:
        kind: its class, such as `transformers.RagTokenForGeneration`.
        generator: name of a sequence-to-sequence model.
    """
    torch.manual_seed(0)
    tokenizers = {
        "question_encoder_tokenizer": tiny_tokenizer(),
        "generator_tokenizer": t5_tokenizer()
        if generator.startswith("t5")
        else tiny_roberta_tokenizer(),
    }
    sizes = [len(tokenizer) for tokenizer in tokenizers.values()]
    stated = {
        "architectures": [kind.__name__],
        "dataset": "wiki_dpr",
        "do_deduplication": True,
        "doc_sep": " // ",
        "generator": {**SEQ2SEQ[generator], "prefix": " ", "vocab_size": sizes[1] + 28},
        "index_name": "exact",
        "is_encoder_decoder": True,
        "max_combined_length": 60,
        "model_type": "rag",
        "n_docs": 2,
        "question_encoder": {
            **ENCODERS["bert-base-uncased"],
            "architectures": ["DPRQuestionEncoder"],
            "model_type": "dpr",
            "projection_dim": 0,
            "vocab_size": sizes[0],
        },
        "title_sep": " / ",
        "vocab_size": None,
    }
    kind(transformers.RagConfig(**json.loads(json.dumps(stated)))).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(stated))
    (folder / "generation_config.json").unlink(missing_ok=True)
    for name, tokenizer in tokenizers.items():
        tokenizer.save_pretrained(folder / name)
    return folder


def published_t5_encoder(folder: Path) -> Path:
    """A folder as of gtr-t5 or sentence-t5: the encoder alone."""
    tokenizer = t5_tokenizer()
    stated = json.loads((CONFIGS / "t5-encoder.json").read_text())
    stated["vocab_size"] = len(tokenizer) + 28
    _write(folder, transformers.AutoModelForTextEncoding, tokenizer, stated, spread=0.3)
    return folder


def published_seq2seq(folder: Path, name: str) -> Path:
    """A folder with the named model's config.json, random weights, and a tokenizer of its kind."""
    is_t5 = SEQ2SEQ[name]["model_type"] == "t5"
    tokenizer = t5_tokenizer() if is_t5 else tiny_roberta_tokenizer()
    size = len(tokenizer) + 28 * is_t5  # a T5 embeds more tokens than it has
    stated = {**SEQ2SEQ[name], "vocab_size": size}
    _write(
        folder, transformers.AutoModelForSeq2SeqLM, tokenizer, stated, spread=0.5 if is_t5 else None
    )
    return folder


def _write(
    folder: Path, auto: Any, tokenizer: Any, stated: Any, *, spread: float | None = None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(stated)
    (folder / "config.json").write_text(text)
    torch.manual_seed(0)
    model = auto.from_config(transformers.AutoConfig.from_pretrained(folder))
    for weight in model.parameters() if spread else ():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, 0.0, spread)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(text)
    (folder / "generation_config.json").unlink(missing_ok=True)  # younger than these models


def t5_tokenizer() -> PreTrainedTokenizerFast:
    """Unigrams as T5 has them: ends with </s>, and no [CLS], [SEP] or beginning of sentences."""
    signs = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -3.0) for word in WORDS] + [(sign, -6.0) for sign in signs]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def stored_as_bin(folder: Path, *, is_archive: bool = True, parts: int = 1, **more: Any) -> Path:
    """The folder with its safetensors as `pytorch_model.bin`, in all its modules.

    Args:
        is_archive: written as torch has done since 1.6; DPR's files are older.
        parts: files of the network, with an index.
        more: tensors by name that are added to those of the network.
    """
    for file in sorted(folder.rglob("model.safetensors")):
        state = load_file(file)
        file.unlink()
        if file.parent == folder:
            state |= more
        names = sorted(state)
        shards = [names[number::parts] for number in range(parts)]
        places = [f"pytorch_model-{number}.bin" for number in range(parts)]
        if parts == 1:
            places = ["pytorch_model.bin"]
        else:
            weight_map = {
                name: place for place, shard in zip(places, shards, strict=True) for name in shard
            }
            index = file.with_name("pytorch_model.bin.index.json")
            index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
        for place, shard in zip(places, shards, strict=True):
            content = OrderedDict((name, state[name]) for name in shard)
            target = file.with_name(place)
            torch.save(content, target, _use_new_zipfile_serialization=is_archive)
    return folder


def with_vocabulary_alone(folder: Path) -> Path:
    """The folder without tokenizer.json, as of before there was that file."""
    file = folder / "tokenizer.json"
    model = json.loads(file.read_text())["model"]
    file.unlink()
    vocabulary = model["vocab"]
    entries = sorted(vocabulary, key=vocabulary.get)
    (folder / "tokenizer_config.json").unlink()
    if model["type"] == "WordPiece":
        (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    else:
        merges = [" ".join(pair) for pair in model["merges"]]
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return folder


def hub_cache(home: Path, name: str, folder: Path) -> None:
    """Put a folder into a cache of the hub as the model `name`."""
    cache = home / f"models--{name.replace('/', '--')}"
    commit = "5b" * 20
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    shutil.copytree(folder, cache / "snapshots" / commit)
