"""Train an extractive reader: the recipe, top to bottom."""

from functools import partial
from itertools import chain

import torch

from rag.data.examples import Example
from rag.data.selection import hold_out
from rag.runtime.model_files import position_limit
from rag.runtime.seeds import Stream
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method, Weights
from rag.training.precision import MasterWeights
from readers.extractive.files import start_model
from readers.extractive.model import Logits
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.extractive.training.batches import ReaderBatch, ReaderBatches
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from readers.extractive.training.finish import RANGE_QUESTIONS, draw, finish, gold_scores
from readers.extractive.training.losses import marginal_loss, span_loss, teacher_loss
from readers.extractive.training.teacher import Teacher
from readers.manifest import load_manifest

_TABLE_SPANS = 24  # the best eight spans of a table are often variants of one cell


def build(config: ReaderTrainConfig, world: World) -> Method:
    """The method of `rag train reader`.

    It writes `trained/` (fp32 weights, loadable by `AutoModelForQuestionAnswering`) and `reader/`,
    the finished int8 reader.

    Raises:
        ArtifactError: if the encoder cannot be loaded, or its tokenizer does not fit it.
    """
    learnt, held_out = _split(config)
    examples = list(chain.from_iterable(examples for _, examples in learnt))
    for_ranges = draw(examples, RANGE_QUESTIONS, config, Stream.RANGES)

    passage_head = config.answer_types or config.selection_weight > 0
    model, tokenizer = start_model(
        config.encoder,
        longest=max(stage.full_tokens for stage in config.stages),
        seed=config.seed,
        dropout=config.dropout,
        freeze_word_embeddings=config.freeze_word_embeddings,
        passage_head=passage_head,
    )
    teacher = None
    if config.teacher is not None:
        teacher = Teacher.load(
            config.teacher,
            tokenizer,
            passage_head=passage_head,
            precision=config.precision,
            device=world.device,
        )
    master = MasterWeights(model.to(world.device), config.precision)
    rows = load_examples(
        learnt, tokenizer, answer_types=config.answer_types, negatives_top_k=config.negatives_top_k
    )
    # From here on the questions are tokens.
    del learnt, examples
    validation = list(chain.from_iterable(held_out.values()))
    watched = draw(validation, config.validation_questions, config, Stream.VALIDATION)
    # Before its ranking is tuned.
    settings = ReaderSettings(
        max_tokens=min(384, position_limit(model.encoder.config.to_dict())),
        question_tokens=config.question_tokens,
        title_tokens=config.title_tokens,
        select=config.normalisation == "passage",
        answer_types=config.answer_types,
        table_spans=_TABLE_SPANS,
        effort=config.effort,
    )

    def evaluate() -> dict[str, float]:
        reader = ExtractiveReader(model, tokenizer, settings, device=world.device)
        return gold_scores(reader, watched)

    def export(weights: Weights) -> dict[str, object]:
        return finish(config, model, weights, tokenizer, held_out, settings, for_ranges)

    load_finished = partial(load_manifest, ReaderManifest, config.out / "reader")
    return Method(
        model,
        master,
        ReaderBatches(rows, config),
        partial(reader_loss, model, config=config, device=world.device, teacher=teacher),
        export,
        Card("readers.extractive.training", "reader.md", {"load_manifest": load_finished}),
        evaluate=evaluate if watched else None,
        facts={
            "sets": ", ".join(part.label for part in config.train),
            "training questions": len(rows),
            "held-out questions": len(validation),
            "passages": len(rows.texts),
        },
    )


def _split(
    config: ReaderTrainConfig,
) -> tuple[list[tuple[TrainingSet, list[Example]]], dict[str, list[Example]]]:
    """The examples to learn from, by set, and those held out, by the name of their set."""
    learnt = []
    held_out = {}
    for part in config.train:
        share = part.held_out if part.labelled else 0.0
        examples, held_out[part.label] = hold_out(
            read_set(part), share, config.seed, lambda example: example.article
        )
        learnt.append((part, examples))
    return learnt, held_out


def reader_loss(
    module: torch.nn.Module,
    batch: ReaderBatch,
    config: ReaderTrainConfig,
    device: str,
    teacher: Teacher | None = None,
) -> Loss:
    """Forward pass and the sum of the losses of answers, passages, and a teacher."""
    batch = batch.to(device)
    output = module(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    groups, per_group, _ = batch.allowed.shape
    start, end = _span_logits(output, groups, config.answer_types)  # (B, P, S) each
    value = start.new_zeros(())
    labelled = batch.labelled
    if labelled.any():
        places = (batch.allowed, batch.starts, batch.ends, batch.acceptable)
        loss = span_loss(
            *(tensor[labelled] for tensor in (start, end, *places)),
            has_answer=batch.has_answer[labelled],
            normalisation=config.normalisation,
        )
        value = labelled.float().mean() * loss
    if config.selection_weight:
        relevance = output.relevance.view(groups, per_group)  # (B, P)
        selection = marginal_loss(relevance, torch.ones_like(batch.positive), batch.positive)
        value = value + config.selection_weight * selection
    if teacher is None:
        return Loss(value, examples=groups, tokens=batch.tokens)
    read = teacher.logits(batch.input_ids, batch.attention_mask)
    of_teacher = _teacher_loss(config, batch, output, read)
    figures = {"answer_loss": value, "teacher_loss": of_teacher}
    value = value.lerp(of_teacher, config.teacher_weight)
    return Loss(value, examples=groups, tokens=batch.tokens, parts=figures)


def _teacher_loss(
    config: ReaderTrainConfig, batch: ReaderBatch, output: Logits, read: Logits
) -> torch.Tensor:
    """The loss of the student's `output` beside what the teacher `read`."""
    groups, per_group, _ = batch.allowed.shape
    rows = groups if config.normalisation == "shared" else groups * per_group
    allowed = batch.allowed.reshape(rows, -1)
    parts = []
    for student, taught in zip(
        _span_logits(output, groups, config.answer_types),
        _span_logits(read, groups, config.answer_types),
        strict=True,
    ):
        loss = teacher_loss(
            student.reshape(rows, -1), taught.reshape(rows, -1), allowed, config.temperature
        )
        parts.append(loss / 2)
    if config.selection_weight and output.relevance is not None and read.relevance is not None:
        relevance = output.relevance.view(groups, per_group)
        taught = read.relevance.view(groups, per_group)
        everything = torch.ones_like(batch.positive)
        selection = teacher_loss(relevance, taught, everything, config.temperature)
        parts.append(config.selection_weight * selection)
    return torch.stack(parts).sum()


def _span_logits(output: Logits, groups: int, answer_types: bool) -> list[torch.Tensor]:
    """Start and end logits (B, P, S); "yes" and "no" are positions behind the tokens."""
    sides = [output.start, output.end]
    if answer_types and output.words is not None:
        sides = [torch.cat([side, output.words], -1) for side in sides]
    return [side.unflatten(0, (groups, -1)) for side in sides]
