"""One training step of a bi-encoder, exact for any number of processes and for batches larger than
memory.

Every process encodes its own texts, gathers everybody's vectors and computes the loss of the whole
batch from them. From its gradient each process keeps that of its own vectors. The parameter
gradients of the processes then add up to the gradient of one process with the whole batch: for both
towers, with negatives across processes, without a factor of the number of processes.

Texts go through an encoder in chunks. With the gradient cache only their vectors are kept; chunk by
chunk, the graph is computed a second time and turns the vectors' gradients into the parameters'.
Dropout draws from a seed of each chunk's own, so the second computation repeats the first exactly,
and no state of a random generator has to be carried.

Source:
    Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"
    (GradCache).

Note:
    In the original DPR code the averaging of gradients divides this sum by the number of processes;
    the common variant in which a process scores its own questions against gathered, detached
    passages loses the gradients that other processes' questions have for its passages.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial

import torch

from rag.runtime.backbone import run_by_length
from rag.runtime.seeds import generator
from rag.training.distributed import World
from rag.training.fit import Loss
from retrievers.encoders.tower import TokenIds
from retrievers.encoders.vectors import Vectors
from retrievers.examples.batches import RetrieverBatch
from retrievers.training.bi_encoder import BiEncoderModel, FixedVectors
from retrievers.training.losses import BatchLoss, in_batch_loss


def contrastive_step(
    model: BiEncoderModel,
    batch: RetrieverBatch,
    world: World | None = None,
    chunk_size: int | None = None,
    *,
    loss: BatchLoss = in_batch_loss,
    fixed: FixedVectors | None = None,
) -> Loss:
    """Forward pass and loss of a batch; `Loss.backward` computes this process's share of the
    gradient.

    Args:
        model: the bi-encoder, with one or several vectors per text; its dropout follows from
            torch's global generator of the main process. A side that is not trained gets no
            backward pass.
        batch: the whole batch, the same in every process.
        world: the processes; None: this one alone.
        chunk_size: texts that go through an encoder at once, by the gradient cache: memory does not
            grow with the batch, every text is encoded twice. None keeps all graphs.
        loss: what to minimise.
        fixed: vectors of the passages, which are then not encoded; None encodes them.

    Returns:
        The loss divided by the number of processes (shares are summed), and this process's number
        of examples and tokens.

    Source:
        Karpukhin et al. 2020, equation 2; Gao et al. 2021 (gradient cache).
    """
    if world is None:
        world = World(device=model.device)
    question_share = world.share(len(batch.questions))
    passage_share = world.share(len(batch.passages))
    seed = world.broadcast_object(int(torch.randint(1 << 62, (1,))))
    encode = partial(
        ChunkedEncoding,
        limits=model.chunk(chunk_size),
        keep_graphs=chunk_size is None,
        device=world.device,
    )

    # forward
    question_ids = model.tokenizer.queries(batch.questions[question_share])
    question_tower = partial(model.question, question=True)
    questions = encode(question_tower, question_ids, seed=seed, first=question_share.start)
    question_leaf = _gathered(questions.vectors, world)  # (B …, D) of all processes
    texts = batch.passages[passage_share]
    passage_ids = model.tokenizer.passages(texts)
    passages = None
    if fixed is None:
        passages = encode(model.passage, passage_ids, seed=seed ^ 1, first=passage_share.start)
        passage_leaf = _gathered(passages.vectors, world)  # (P …, D)
    else:
        passage_leaf = _gathered(fixed.of(texts), world)

    # loss
    value = loss(model.score(question_leaf, passage_leaf), batch.to(world.device))

    def backward(flush: Callable[[], None]) -> None:
        trained = []
        if _is_trained(model.question):
            trained.append((questions, question_leaf))
        if passages is not None and _is_trained(model.passage):
            trained.append((passages, passage_leaf))
        gradients = torch.autograd.grad(value, [leaf.values for _, leaf in trained])
        for (side, leaf), gradient in zip(trained, gradients, strict=True):
            of_process = range(side.first, side.first + len(side.vectors))
            side.backward(Vectors(gradient, leaf.lengths).take(of_process), flush)

    tokens = sum(map(len, question_ids)) + sum(map(len, passage_ids))
    return Loss(value.detach() / world.size, len(question_ids), tokens, backward)


def _is_trained(tower: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in tower.parameters())


def _gathered(vectors: Vectors, world: World) -> Vectors:
    """The vectors of all processes, as a leaf that takes a gradient."""
    values = world.all_gather(vectors.values).requires_grad_(torch.is_grad_enabled())
    return Vectors(values, None if vectors.lengths is None else world.all_gather(vectors.lengths))


@dataclass(slots=True)
class _Chunk:
    """Rows that are encoded together, the seed of their dropout, and their vectors while a graph is
    kept.
    """

    rows: list[int]
    seed: int
    vectors: Vectors | None = None


@dataclass(eq=False)
class ChunkedEncoding:
    """The vectors of many texts, computed in chunks, and the way back from their gradients.

    Attributes:
        encode: texts of one chunk → their vectors, differentiable in the encoder's parameters.
        texts: token ids; texts of similar length share a chunk.
        limits: most texts and most tokens in a chunk.
        keep_graphs: True computes each chunk once and holds all graphs; False is the gradient
            cache.
        seed: of the dropout; chunk k draws from `seed` and the number of its first text.
        first: number of `texts[0]` in the batch of all processes.
        vectors: detached, in the order of the texts.
    """

    encode: Callable[[list[TokenIds]], Vectors]
    texts: Sequence[TokenIds]
    _: KW_ONLY
    limits: tuple[int, int]
    keep_graphs: bool
    seed: int
    first: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._chunks: list[_Chunk] = []
        parts, order = run_by_length(self._forward, list(map(len, self.texts)), self.limits)
        self.vectors = Vectors.joined(parts).take(order)

    def _forward(self, rows: list[int]) -> Vectors:
        """Detached vectors of a chunk, whose graph is kept or will be computed again."""
        seed = int(generator(self.seed, self.first + min(rows)).integers(1 << 62))
        chunk = _Chunk(rows, seed)
        self._chunks.append(chunk)
        # The only chunk of a batch takes no more memory with its graph than a second time.
        keep = self.keep_graphs or len(rows) == len(self.texts)
        with torch.set_grad_enabled(keep and torch.is_grad_enabled()):
            vectors = self._run(chunk)
        if vectors.values.requires_grad:
            chunk.vectors = vectors
        return Vectors(vectors.values.detach(), vectors.lengths)

    def backward(self, gradient: Vectors, after_chunk: Callable[[], None]) -> None:
        """Add the parameters' gradients, given the loss's gradient with respect to `vectors`."""
        for chunk in self._chunks:
            vectors = chunk.vectors
            if vectors is None:
                with torch.enable_grad():
                    vectors = self._run(chunk)
            chunk.vectors = None  # frees the graph right after its backward pass
            vectors.values.backward(gradient.take(chunk.rows).values)
            del vectors
            after_chunk()

    def _run(self, chunk: _Chunk) -> Vectors:
        """A chunk's vectors, with dropout of its own seed; global generators go on as before after
        it.
        """
        with torch.random.fork_rng(devices=[] if self.device == "cpu" else [self.device]):
            torch.manual_seed(chunk.seed)
            return self.encode([self.texts[row] for row in chunk.rows])
