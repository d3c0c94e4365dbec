"""RAG's and EMDR²'s losses against sums written out in float64, and against transformers' RAG
classes.
"""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    RagConfig,
    RagSequenceForGeneration,
    RagTokenForGeneration,
)
from transformers.models.dpr import DPRConfig

from rag.joint.losses import AnswerBatch, emdr2_loss, rag_loss
from readers.generative.marginal import answer_log_likelihood, posterior
from readers.generative.model import Seq2Seq
from retrievers.training.bi_encoder import listed_scores
from tests.tiny_generator import KINDS, tiny_seq2seq
from tests.tiny_reader import tiny_tokenizer

# three questions with three, two and one passages; the last answer is one token and its end
ROWS = [
    [[2, 60, 61, 62, 3], [2, 61, 7, 9, 66, 63, 3], [2, 64, 3]],
    [[2, 9, 10, 11, 12, 3], [2, 14, 3]],
    [[2, 17, 18, 3]],
]
ANSWERS = [[61, 62, 9], [66, 70], [21]]
PLACES = torch.tensor([[0, 1, 2], [2, 3, -1], [4, -1, -1]])


def seq2seq(kind: str = "bart") -> Seq2Seq:
    model = Seq2Seq(tiny_seq2seq(kind), tiny_tokenizer())
    model.model.double()
    return model


def sides(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors of three questions and five passages."""
    torch.manual_seed(seed)
    return tuple(torch.randn(n, 8, dtype=torch.float64, requires_grad=True) for n in (3, 5))  # type: ignore[return-value]


def alone(model: Any, passage: list[int], answer: list[int]) -> Tensor:
    """(T, V) log-probabilities by one plain forward pass of one passage."""
    said = [2, *answer]
    out = model(input_ids=torch.tensor([passage]), decoder_input_ids=torch.tensor([said]))
    return out.logits[0].log_softmax(-1)


def written_out(
    marginal: str, model: Any, q: Tensor, d: Tensor, smoothing: float, fixed: bool
) -> Tensor:
    """The sums of section 2.1, question by question, passage by passage."""
    total = torch.zeros((), dtype=torch.float64)
    for b, passages in enumerate(ROWS):
        exponentials = [(q[b] @ d[PLACES[b, k]] * 0.5).exp() for k in range(len(passages))]
        prior = [e / sum(exponentials) for e in exponentials]
        words = [alone(model, passage, ANSWERS[b]).exp() for passage in passages]
        words = [w.detach() for w in words] if fixed else words
        targets = [*ANSWERS[b], 3]
        size = words[0].shape[1]
        if marginal == "token":
            mixed = sum(p * w for p, w in zip(prior, words, strict=True))
            nll = -sum(mixed[t, y].log() for t, y in enumerate(targets))
            smooth = mixed.log().sum() / size
        else:
            whole = [
                p * math.prod(w[t, y] for t, y in enumerate(targets)) for p, w in zip(prior, words)
            ]
            nll = -sum(whole).log()
            terms = torch.stack([size * p.log() + w.log().sum() for p, w in zip(prior, words)])
            smooth = terms.logsumexp(0) / size
        total = total + (1 - smoothing) * nll - smoothing * smooth
    return total


def gradients(value: Tensor, model: Any, *sides: Tensor) -> list[Tensor]:
    weights = [*sides, *(p for p in model.parameters() if p.requires_grad)]
    result = torch.autograd.grad(value, weights, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(result, weights, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("marginal", "smoothing"), product(("sequence", "token"), (0.0, 0.1)))
def test_rag_is_the_sum_over_passages_and_so_are_all_its_gradients(
    kind: str, marginal: Any, smoothing: float
) -> None:
    ours = seq2seq(kind)
    q, d = sides()
    batch = AnswerBatch(ours, ROWS, ANSWERS, 8192)
    scores = listed_scores(q, d, PLACES, 0.5)
    actual = rag_loss(scores, batch, marginal=marginal, smoothing=smoothing)
    expected = written_out(marginal, ours.model, q, d, smoothing, fixed=False)
    assert float(actual.reader.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    for mine, theirs in zip(
        gradients(actual.reader, ours.model, q, d),
        gradients(expected, ours.model, q, d),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    assert float(torch.autograd.grad(actual.retriever + d.sum() * 0, d)[0].abs().sum()) == 0


@pytest.mark.parametrize("marginal", ["sequence", "token"])
def test_the_gradient_of_a_score_is_posterior_less_prior(marginal: Any) -> None:
    torch.manual_seed(1)
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    logp, spoken = -torch.rand(4, 3, 5, dtype=torch.float64), torch.ones(4, 5, dtype=torch.bool)
    [result] = torch.autograd.grad(answer_log_likelihood(marginal, scores, logp).sum(), scores)
    weights = posterior(marginal, scores, logp, spoken)
    times = 1 if marginal == "sequence" else 5
    torch.testing.assert_close(result, times * (weights - scores.softmax(1)))
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))


def published(kind: type[Any], model: Any, epsilon: float) -> Any:
    """transformers' class around our generator."""
    asking = DPRConfig(
        vocab_size=99, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
    ).to_dict()
    config = RagConfig(
        question_encoder=asking,
        generator=model.config.to_dict(),
        n_docs=2,
        label_smoothing=epsilon,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    question = BertModel(
        BertConfig(vocab_size=99, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    return kind(config, question_encoder=question, generator=model).eval()


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize(
    ("marginal", "kind"), [("sequence", RagSequenceForGeneration), ("token", RagTokenForGeneration)]
)
def test_the_losses_are_those_of_transformers(
    marginal: Any, kind: type[Any], epsilon: float
) -> None:
    ours = seq2seq()
    rows, answers = [ROWS[0][:2], ROWS[1][:2]], ANSWERS[:2]
    ids, mask = ours.pad_rows([ids for passages in rows for ids in passages])
    labels, _ = ours.pad_rows([[2, *answer, 3] for answer in answers])
    scores = torch.tensor([[0.3, -0.4], [1.1, 0.2]], dtype=torch.float64)
    theirs = published(kind, ours.model, epsilon)
    expected = theirs(
        context_input_ids=ids,
        context_attention_mask=mask,
        doc_scores=scores,
        labels=labels,
        reduce_loss=True,
        n_docs=2,
    ).loss
    batch = AnswerBatch(ours, rows, answers, 8192)
    actual = rag_loss(scores, batch, marginal=marginal, smoothing=epsilon)
    assert float(actual.reader.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)


@pytest.mark.parametrize("marginal", ["sequence", "token"])
def test_emdr2_teaches_the_retriever_through_a_reader_that_stands_still(marginal: Any) -> None:
    ours = seq2seq("t5")
    q, d = sides()
    scores = listed_scores(q, d, PLACES, 0.5)
    actual = emdr2_loss(scores, AnswerBatch(ours, ROWS, ANSWERS, 8192), marginal=marginal)
    expected = written_out(marginal, ours.model, q, d, 0.0, fixed=True)
    assert float(actual.retriever.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    mine, theirs = (gradients(value, ours.model, q, d) for value in (actual.retriever, expected))
    for item, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-6, atol=1e-9)
    assert float(mine[0].abs().sum()) > 0
    assert all(float(gradient.abs().sum()) == 0 for gradient in mine[2:])  # the reader's
    memory = ours.encode(ROWS)
    plain = -ours.token_log_probs(memory, ours.targets(ANSWERS)).sum()
    of_reader = gradients(actual.reader, ours.model, q, d)
    assert float(of_reader[0].abs().sum() + of_reader[1].abs().sum()) == 0  # the retriever's
    torch.testing.assert_close(of_reader[2:], gradients(plain, ours.model, q, d)[2:])
