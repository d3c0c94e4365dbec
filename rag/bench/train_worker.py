"""One contestant of `rag bench train`, in a separate process: it takes a training step on request.

Started as `python -m rag.bench.train_worker SETTINGS.json`. It prints a JSON line when it is ready, then
answers every line on its standard input with another: loss, and the peak of its memory so far.
"""

import json
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from rag.core.errors import DataError
from rag.core.files import read_json
from rag.core.optional import require
from rag.data.examples import Example, read_examples
from rag.runtime.hardware import use_threads
from rag.runtime.model_files import model_folder
from rag.runtime.seeds import generator, seed_everything

_SCALE = 20.0  # 1 / temperature 0.05


def main(path: str) -> None:
    """Load the contestant that the settings file names, then serve steps."""
    settings = read_json(path)
    use_threads(settings["threads"])
    seed_everything(settings["seed"])
    step = make_step(settings)
    _say({"ready": True})
    for _ in sys.stdin:
        loss = step()
        _say({"loss": loss, "peak_bytes": _peak_bytes(settings["device"])})


def _peak_bytes(device: str) -> int:
    """Most memory so far: of the GPU's allocations, or of this whole process."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.cuda.max_memory_allocated()


def make_step(settings: Mapping[str, Any]) -> Callable[[], float]:
    """The training step of a contestant: forward, loss, backward, clipping, AdamW; returns the loss.

    All have the same weights, examples in the same order, candidates (all positives and hard negatives of the
    batch), temperature and length limit, no dropout, and texts that were tokenised before.
    """
    examples = list(islice(read_examples(Path(settings["train_file"])), settings["questions"]))
    if settings["hard_negative"]:
        examples = [example for example in examples if example.negatives]
    if len(examples) < settings["batch_size"]:
        raise DataError(
            f"{settings['train_file']} gives {len(examples)} usable examples for batches of "
            f"{settings['batch_size']}",
            hint="lower --batch-size, or --no-hard-negative if the file has none",
        )
    return _ours(settings, examples) if settings["side"] == "ours" else _peer(settings, examples)


def _ours(settings: Mapping[str, Any], examples: list[Example]) -> Callable[[], float]:
    from rag.config import load_config
    from rag.runtime.hardware import bound_kernel_caches, keep_freed_memory, resolve_precision
    from rag.training.distributed import World
    from rag.training.precision import MasterWeights
    from retrievers.examples.batches import Epochs, RetrieverBatches
    from retrievers.examples.data import TrainingArrays
    from retrievers.examples.tokens import RetrieverTokenizer
    from retrievers.training.bi_encoder import load_model
    from retrievers.training.config import DprTrainConfig
    from retrievers.training.step import contrastive_step

    bound_kernel_caches()  # as `rag.training.fit.fit` does
    keep_freed_memory()
    read = {
        "dropout": 0.0, "temperature": 1 / _SCALE, "question_encoder": settings["encoder"], "normalize": True,
        "question_tokens": settings["tokens"], "passage_tokens": settings["tokens"],
        "precision": settings["precision"], "batch_size": settings["batch_size"],
    }  # fmt: skip
    paths = {"out": "unused", "train_files": [settings["train_file"]]}
    config = load_config(DprTrainConfig, overrides=paths | read)
    device = settings["device"]
    model = load_model(config, device)
    master = MasterWeights.lowering(model, resolve_precision(config.optim.precision, device))
    tokenizer = RetrieverTokenizer(model.settings.question, model.settings.passage)
    data = TrainingArrays.build(_first_negative(examples), tokenizer, match_answers=False)
    epochs = Epochs(len(data), settings["batch_size"], epochs=1000, seed=settings["seed"])
    hard = int(settings["hard_negative"])
    batches = RetrieverBatches(data, epochs, hard_negatives=hard, mask_false_negatives=False)
    optimizer = master.optimizer(2e-5, 0.01)
    chunk = settings["chunk_size"] if settings["cached"] else None
    numbers = iter(range(len(batches)))

    def step() -> float:
        loss = contrastive_step(model, batches[next(numbers)], World.single(device), chunk)
        loss.compute_gradients(master.gather_gradients)
        torch.nn.utils.clip_grad_norm_(master.master, 1.0)
        optimizer.step()
        master.write_back()
        return float(loss.value)

    return step


def _peer(settings: Mapping[str, Any], examples: list[Example]) -> Callable[[], float]:
    library = require("sentence_transformers", extra="bench")
    losses = require("sentence_transformers.sentence_transformer.losses", extra="bench")
    batch_to_device = require("sentence_transformers.util", extra="bench").batch_to_device
    device, bf16 = settings["device"], settings["precision"] == "bf16"
    model = library.SentenceTransformer(str(model_folder(settings["encoder"])), device=device)
    model.max_seq_length = settings["tokens"]
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if settings["cached"]:
        objective = losses.CachedMultipleNegativesRankingLoss(
            model, scale=_SCALE, mini_batch_size=settings["chunk_size"]
        )
    else:
        objective = losses.MultipleNegativesRankingLoss(model, scale=_SCALE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    batches = _peer_batches(settings, examples, model)
    model.train()

    def step() -> float:
        features, labels = next(batches)
        optimizer.zero_grad()
        moved = [batch_to_device(dict(column), device) for column in features]
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            loss = objective(moved, labels.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def _peer_batches(
    settings: Mapping[str, Any], examples: list[Example], model: Any
) -> Iterator[tuple[list[dict[str, torch.Tensor]], torch.Tensor]]:
    """The batches of ours as columns: question, positive, hard negative; tokenised before the first step."""
    size = settings["batch_size"]
    order = generator(settings["seed"], 21, 0).permutation(len(examples))  # of `RetrieverBatches`
    made = []
    for start in range(0, len(examples) - size + 1, size):
        chosen = [examples[int(i)] for i in order[start : start + size]]
        columns = [[e.question for e in chosen], [_joined(e.positives[0]) for e in chosen]]
        if settings["hard_negative"]:
            columns.append([_joined(e.negatives[0].passage) for e in chosen])
        made.append(([model.tokenize(column) for column in columns], torch.arange(size)))
        if len(made) == settings["steps"]:
            break
    return cycle(made)


def _first_negative(examples: list[Example]) -> Iterator[Example]:
    for e in examples:
        yield Example.labelled(e.id, e.question, e.answers, e.positives, e.negatives[:1])


def _joined(passage: Any) -> str:
    return f"{passage.title} {passage.text}" if passage.title else passage.text


def _say(record: Mapping[str, Any]) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
