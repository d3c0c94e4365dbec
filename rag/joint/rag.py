"""Retriever and generator as one model, trained from questions and answers alone: RAG and EMDR².

questions → vectors → top k of the live index → their scores with gradient → generator → loss → fit
→ export

The generator may also be trained alone, over the results of a fixed retriever.

Source:
    Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks"; end to
    end: Siriwardhana et al. 2023, "Improving the Domain Adaptation of Retrieval Augmented
    Generation (RAG) Models for Open Domain Question Answering"; Sachan et al. 2021, "End-to-End
    Training of Multi-Document Reader and Retriever for Open-Domain Question Answering" (EMDR²).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.protocols import EncodesCorpus
from indexers.rights import copy_rights
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage, Question
from rag.data.text import REGEX_PROFILE
from rag.joint.config import TRAINED, JointTrainConfig
from rag.joint.finders import Finder, FixedFinder, LearningFinder
from rag.joint.live_index import LiveIndex, index_refresh
from rag.joint.losses import AnswerBatch
from rag.joint.questions import gold_sums, holding_answers, questions_of
from rag.runtime.seeds import Stream, generator
from rag.training.distributed import World
from rag.training.fit import FitHooks, Loss, Method, Weights
from rag.training.precision import MasterWeights, part
from rag.training.run import train
from readers.generative.files import load_generator
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorManifest, GeneratorSettings, encode_rows
from readers.generative.training.recipe import reader_card, save_reader
from retrievers.bound import QUESTION_ENCODER, binding
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import Epochs
from retrievers.open import named_kind, open_retriever
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index, export_model, load_model

Asked = tuple[Question, str]
"""A question, and the answer to it that is learnt this time."""


class JointBatches:
    """The batches of a run by number; of each question's answers one is drawn."""

    def __init__(self, config: JointTrainConfig, questions: Sequence[Question]) -> None:
        self._questions = questions
        self._seed = config.seed
        self._epochs = Epochs.of(config, len(questions))

    def __len__(self) -> int:
        return len(self._epochs)

    def __getitem__(self, number: int) -> list[Asked]:
        draw = generator(self._seed, Stream.BATCH, number)
        batch = []
        for row in self._epochs[number].tolist():
            question = self._questions[row]
            accepted = [answer.strip() for answer in question.answers if answer.strip()]
            batch.append((question, accepted[int(draw.integers(len(accepted)))]))
        return batch


@dataclass(frozen=True, slots=True)
class JointTask:
    """Questions with retrieved passages: their loss and figures.

    Attributes:
        module: all that is trained, including the generator inside `seq2seq`.
        settings: how the generator reads.
        finder: gives passages and their scores.
    """

    config: JointTrainConfig
    module: nn.Module
    seq2seq: Seq2Seq
    settings: GeneratorSettings
    finder: Finder

    def loss(self, batch: Sequence[Asked]) -> Loss:
        """The loss of a batch, by the objective, for retriever and generator."""
        count = len(batch)
        questions = [question for question, _ in batch]
        passages, scores = self.finder.find(questions)
        # The search may find fewer than top_k for each question.
        scores = scores[:, : max(map(len, passages))]
        answers = self._answer_batch(questions, passages, [answer for _, answer in batch])
        learned = self.config.objective()(scores, answers)
        prior = scores.detach().softmax(1)
        holds = holding_answers(questions, passages, prior.shape).to(prior.device)
        sums = gold_sums(prior, learned.weights, holds)
        sums |= {"reader": learned.reader.detach(), "retriever": learned.retriever.detach()}
        return Loss(
            (learned.reader + learned.retriever) / count,
            examples=count,
            tokens=sum(len(passage.text.split()) for passage in chain.from_iterable(passages)),
            parts={name: value / count for name, value in sums.items()},
        )

    def _answer_batch(
        self,
        questions: Sequence[Question],
        passages: Sequence[Sequence[Passage]],
        answers: Sequence[str],
    ) -> AnswerBatch:
        seq2seq = self.seq2seq
        texts = [question.text for question in questions]
        rows = encode_rows(seq2seq.tokenizer, self.settings, texts, passages)
        most = self.settings.answer_tokens
        targets = [seq2seq.answer_ids(answer)[:most] for answer in answers]
        return AnswerBatch(seq2seq, rows, targets, self.settings.batch_tokens)

    def measure(self, questions: Sequence[Question]) -> dict[str, float]:
        """Held-out questions: {"em", "f1"} and top-k in per cent, unsmoothed "nll" of first
        answers that are not blank.
        """
        was_training = self.module.training
        self.module.eval()
        reader = GenerativeReader(self.seq2seq, self.settings)
        requests, figures = self.finder.evaluate(questions, reader, self.config.batch_size)
        targets = [next(filter(str.strip, question.answers)) for question in questions]
        figures["nll"] = -fmean(reader.log_likelihood(requests, targets))
        self.module.train(was_training)
        return figures


def train_joint(config: JointTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train as `config` says, or resume the run in `config.out`; see `rag.training.run.train`.

    Writes `reader/`, the generator with its question encoder; if the passage encoder is trained too
    (end to end), also `encoder/` with both towers, and `index/`, the passages encoded by it. With a
    fixed `retriever` only the generator is trained.

    Args:
        encode: encodes the corpus at a refresh.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        ConfigError: the index lacks what a fixed retriever needs.
        MismatchedArtifactError: the index was built with another encoder than the one named.

    Note:
        One of a question's answers is drawn each time, where the papers make an example of every
        pair.
    """
    with Index.open(config.index) as index:
        if config.retriever == TRAINED:
            config = adopt_index(config, index, same_encoder=True)
        if config.top_k > len(index.passages):
            raise ConfigError(
                f"top_k is {config.top_k}, the index has {len(index.passages)} passages"
            )
        return train(config, partial(build, config, index=index, encode=encode), "reader")


def build(
    config: JointTrainConfig, world: World, *, index: Index, encode: EncodesCorpus | None
) -> Method:
    """The method of `train_joint`."""
    # model
    device = world.device
    is_frozen = config.frozen is not None
    retriever = None
    scale = config.prior_scale
    module = nn.ModuleDict()
    if config.retriever == TRAINED:
        passage_index = index if is_frozen else None
        retriever = load_model(config, device, passage_index=passage_index).model
        scale = retriever.scale
        module["retriever"] = retriever
    seq2seq, settings = _load_generator(config, scale, device)
    module["generator"] = seq2seq.model
    master = MasterWeights(module, config.precision)

    # data
    questions, held_out = questions_of(config)
    _refuse_expressions([*questions, *held_out])
    hooks = FitHooks()
    finder: Finder
    if retriever is None:
        searched = open_retriever(
            index, config.retriever, encoder=config.question_encoder, device=device
        )
        finder = FixedFinder(searched, index, config.top_k, scale, device)
        questions = finder.answerable(questions)
        held_out = finder.answerable(held_out)
    else:
        live_index = LiveIndex(index)
        finder = LearningFinder(
            retriever,
            live_index,
            top_k=config.top_k,
            over_retrieve=config.over_retrieve,
            encode=not is_frozen,
        )
        if not is_frozen and config.refresh_every_steps:
            hooks = index_refresh(config, live_index, retriever, master, world=world, encode=encode)
    task = JointTask(config, module, seq2seq, settings, finder)
    return Method(
        model=module,
        master=master,
        batches=JointBatches(config, questions),
        loss=task.loss,
        export=partial(_export, config, index, retriever, seq2seq, settings),
        card=reader_card(settings),
        evaluate=partial(task.measure, held_out) if held_out else None,
        hooks=hooks,
        facts={"questions": len(questions), "held-out questions": len(held_out)},
    )


def _load_generator(
    config: JointTrainConfig, scale: float, device: str
) -> tuple[Seq2Seq, GeneratorSettings]:
    """The generator, and how it reads."""
    # What was trained to read passages together reads no more of them; RAG takes each by itself.
    most = config.top_k if config.mode == "fid" else GeneratorSettings().max_passages
    overrides: dict[str, Any] = {
        "template": config.template,
        "passage_tokens": config.reader_passage_tokens,
        "question_tokens": config.reader_question_tokens,
        "answer_tokens": config.answer_tokens,
        "batch_tokens": config.batch_tokens,
        "mode": config.mode,
        "prior_scale": scale,
        "max_passages": most,
    }
    overrides = {name: value for name, value in overrides.items() if value is not None}
    seq2seq, manifest = load_generator(
        config.generator,
        device=device,
        trains=True,
        dropout=config.reader_dropout,
        no_answer=None,
        **overrides,
    )
    return seq2seq, manifest.settings


def _refuse_expressions(questions: list[Question]) -> None:
    if any(question.answer_profile == REGEX_PROFILE for question in questions):
        raise DataError(
            "answers are regular expressions, and a generator learns to say strings",
            hint="train on questions with plain answers; `rag train orqa` learns from expressions",
        )


def _export(
    config: JointTrainConfig,
    index: Index,
    retriever: BiEncoderModel | None,
    seq2seq: Seq2Seq,
    settings: GeneratorSettings,
    weights: Weights,
) -> None:
    """Write the reader, which names what it searches with."""
    manifest = GeneratorManifest(name=config.name, settings=settings)

    def bind(folder: Path) -> None:
        bound: Mapping[str, Any]
        if retriever is None:
            bound = {"kind": named_kind(config.retriever, index)}
        else:
            bound = _bind(config, index, retriever, part(weights, "retriever"), folder)
        manifest.model_copy(update={"retriever": bound}).save(folder)

    generator = part(weights, "generator")
    save_reader(config.out / "reader", seq2seq, generator, manifest, add=bind)


def _bind(
    config: JointTrainConfig,
    index: Index,
    retriever: BiEncoderModel,
    weights: Weights,
    folder: Path,
) -> Mapping[str, Any]:
    """Write the question encoder into the reader's folder, and describe the index that it searches.

    That is the index of the run or, where the passage encoder was trained too, a new one, which is
    written with that encoder.
    """
    identity = index.require_dense().encoder
    settings = retriever.settings.passage
    if config.frozen is None:
        export_model(config.out / "encoder", retriever, weights, settings)
        encoder = BiEncoder.load(config.out / "encoder", device=retriever.device)
        copy_rights(index.directory, config.out / "index")
        flat = BuildSettings(index_type="flat")
        write_index(config.out / "index", index.puts(), encoder=encoder, settings=flat)
        identity = encoder.identity
    export_model(folder / QUESTION_ENCODER, retriever, weights, settings, question_only=True)
    return binding(folder, identity)
