"""`rag plan`: RAM, disk and time of an index, before it is built."""

import json
import random
import time
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

from indexers.settings import BuildSettings
from rag.cli.options import OUTPUT, READING, Read, adds_options, option, options_of

_TOKEN_DIM = 128  # of published ColBERT models; the embedded encoder makes one vector a text
_RARE, _RARE_WORDS = 0.07, 200_000  # share and number of rare words in the text whose encoding is timed
STATIC = "static"  # name and pooling of the static encoder of the package
_NIGHT_S = 10 * 3600
_STATIC_COST = (
    "It costs accuracy: with BM25, the answer is in the top 20 for 96.3 % of NQ's questions and 58.6 % of "
    "CuratedTREC's, against 99.1 and 60.5 % with MiniLM, and 92.0 and 51.2 % with BM25 alone."
)
_SETTINGS = options_of(BuildSettings, "retriever", "index_type", "token_bits", "dtype", panel="Index")


@adds_options("settings", _SETTINGS)
def plan(
    *,
    passages: Annotated[int, option(*("--passages", "-n"), min=1, help="Number of passages.", panel="Index")],
    passage_bytes: Annotated[
        float, option(min=1, help="Mean bytes of title and text.", panel="Index")
    ] = 650.0,
    settings: dict[str, Any],
    encoder: Annotated[str | None, option(help="Encoder whose speed is measured.", panel="Encoder")] = None,
    dim: Annotated[
        int | None,
        option(
            min=1, help="Vector size; default: the encoder's, 128 for plaid without one.", panel="Encoder"
        ),
    ] = None,
    encode_per_s: Annotated[
        float | None,
        option(help="Encoding speed in passages/s, if known; skips the measurement.", panel="Encoder"),
    ] = None,
    measure: Annotated[
        bool,
        option("--measure/--no-measure", help="Measure the encoding speed of this machine.", panel="Encoder"),
    ] = True,
    questions: Annotated[
        int, option(min=0, help="Questions served when memory is stated.", panel=READING)
    ] = 10_000,
    read: Read = 20,
    config: Annotated[
        str | None,
        option(help="Preset or file: also shows its comment on what training needs.", panel="Training"),
    ] = None,
    as_json: Annotated[bool, option("--json", help="Print JSON.", panel=OUTPUT)] = False,
) -> None:
    """State RAM, disk and time for a corpus size, encoder and index type, from rates measured here.

    It also lists training recipes with their presets; --config shows what one of these needs.
    """
    from indexers.plan import Rates, measure_rates
    from indexers.plan import plan as make_plan
    from rag.config import load_config, preset_comment, preset_names, recipe_of
    from rag.core.errors import ConfigError
    from rag.recipes import RECIPES

    training = {} if config is None else {"recipe": recipe_of(config), "comment": preset_comment(config)}
    if training and training["recipe"] not in RECIPES:
        raise ConfigError(
            f"{config} names no training recipe (recipe: {training['recipe'] or 'nothing'})",
            hint=f"recipe is one of: {', '.join(RECIPES)}",
        )
    checked = load_config(BuildSettings, overrides=settings)
    if checked.has_tokens and encoder is None and dim is None:
        dim = _TOKEN_DIM
        typer.echo(
            f"note: assuming token vectors of {dim} dimensions, as in ColBERT; --dim or --encoder set others",
            err=True,
        )

    @cache
    def encoder_once() -> Any:
        from retrievers.encoders.open import load_encoder

        return load_encoder(encoder)

    model_bytes = _model_bytes(encoder_once if checked.has_encoder else None)
    if checked.has_encoder and (dim is None or (encode_per_s is None and measure)):
        loaded = encoder_once()
        dim = dim or loaded.dim
        if encode_per_s is None and measure:
            encode_per_s = _encode_rate(loaded)
            if dim != loaded.dim:
                typer.echo(
                    f"note: speed measured with {loaded.identity.name} (dim {loaded.dim}); "
                    "an encoder with other dimensions is slower or faster",
                    err=True,
                )
    rates = measure_rates(dim or 384) if measure else Rates()
    result = make_plan(
        passages, dim or 0, settings=checked, encode_per_s=encode_per_s, rates=rates,
        passage_bytes=passage_bytes, documents=passages, model_bytes=model_bytes, questions=questions,
        top_k=read,
    )  # fmt: skip
    advice = (
        "" if checked.has_tokens or encoder == STATIC else _static_advice(passages, encode_per_s, measure)
    )
    if as_json:
        more: dict[str, Any] = {"training": training} if training else {}
        more |= {"advice": advice} if advice else {}
        typer.echo(json.dumps({**result.to_json(), "encode_per_s": encode_per_s, **more}, indent=2))
        return
    typer.echo(result.describe())
    if encode_per_s is not None and checked.has_encoder:
        typer.echo(f"encoding at {encode_per_s:,.0f} passages/s" + (", measured here" if measure else ""))
    if advice:
        typer.echo(advice)
    if training:
        typer.echo(f"\n{config}, for `rag train {training['recipe']}`\n{training['comment']}")
        return
    typer.echo("\ntraining (--config PRESET: what it needs)")
    of = {name: recipe_of(name) for name in preset_names()}
    for recipe in RECIPES:
        typer.echo(f"  {recipe:<10} {', '.join(name for name in of if of[name] == recipe)}")


def _static_advice(passages: int, encode_per_s: float | None, measure: bool) -> str:
    """Advice: if encoding takes more than a night, the time that the static encoder saves, and its cost."""
    if encode_per_s is None or passages / encode_per_s < _NIGHT_S:
        return ""
    faster = ""
    if measure:
        from retrievers.encoders.open import load_encoder

        hours = passages / _encode_rate(load_encoder(STATIC)) / 3600
        faster = f" in {hours:.1f} h" if hours >= 1 else f" in {60 * hours:.0f} min"
    return (
        f"encoding takes {passages / encode_per_s / 3600:,.0f} h, more than a night: "
        f"--encoder {STATIC} encodes them{faster}.\n{_STATIC_COST}"
    )


def _model_bytes(load_encoder: Callable[[], Any] | None) -> float:
    """Bytes of the tensors that a serving process needs for its models, measured by loading them."""
    from readers.extractive.reader import ExtractiveReader

    before = _tensor_bytes()
    loaded: list[Any] = [ExtractiveReader.load()]
    if load_encoder is not None:
        encoder = load_encoder()
        several = encoder.identity.pooling == "tokens"
        ask = encoder.question_tokens if several else encoder.encode_questions
        ask(["Is everything loaded?"])  # weights are loaded with the first text
        loaded.append(encoder)
    return float(_tensor_bytes() - before)


def _tensor_bytes() -> int:
    import gc

    import torch

    gc.collect()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or thing.device.type != "cpu":
            continue
        try:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        except NotImplementedError:  # packed for the processor: no storage to look at
            storages[-id(thing)] = thing.nelement() * thing.element_size()
    return sum(storages.values())


def _encode_rate(encoder: Any) -> float:
    """Passages of 100 words per second, after a warm-up."""
    n_passages = 8192 if encoder.identity.pooling == STATIC else 128
    titles = ["A title"] * n_passages
    several = encoder.identity.pooling == "tokens"
    encode = encoder.passage_tokens if several else encoder.encode_passages
    encode(titles[: n_passages // 4], _texts(n_passages // 4, 0))  # so that frequent words are known
    texts = _texts(n_passages, 1)
    started = time.perf_counter()
    encode(titles, texts)
    return n_passages / (time.perf_counter() - started)


def _texts(count: int, seed: int) -> list[str]:
    """Texts of 100 words of the sample corpus, and among them as many rare words as Wikipedia has.

    How many words are new decides the speed of the static encoder, which looks up words that it has seen.
    A rare word is the beginning of one word and the end of another.
    """
    from rag.sample import corpus_path

    lines = corpus_path().read_text(encoding="utf-8").splitlines()
    words = " ".join(json.loads(line)["text"] for line in lines).split()
    known, draw = list(dict.fromkeys(words)), random.Random(seed)
    texts = []
    for _ in range(count):
        start = draw.randrange(len(words) - 100)
        text = words[start : start + 100]
        for place in range(100):
            if draw.random() < _RARE:
                rank = int(_RARE_WORDS * draw.random() ** 2)
                one = known[rank * 7919 % len(known)]
                other = known[(rank * 104_729 + rank // len(known)) % len(known)]
                text[place] = one[: (len(one) + 1) // 2] + other[len(other) // 2 :]
        texts.append(" ".join(text))
    return texts
