"""Train a question encoder and a generator together, by the likelihood of answers (RAG)."""

from functools import partial
from pathlib import Path

from indexers.protocols import EncodesCorpus
from rag.joint.config import RagTrainConfig
from rag.joint.losses import rag_loss
from rag.joint.together import train_together


def train_rag(config: RagTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train RAG, or resume the run that `config.out` holds: see `train_together` for what is written.

    With `document_side` "reencode" the passage encoder is trained too (end to end); with a fixed `retriever`
    only the generator is trained.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks"; end to end:
        Siriwardhana et al. 2023, "Improving the Domain Adaptation of Retrieval Augmented Generation (RAG)
        Models for Open Domain Question Answering".

    Note:
        One of a question's answers is drawn each time, where the paper makes an example of every pair.
    """
    batch_tokens = config.batch_tokens or 8192
    objective = partial(rag_loss, config.marginal, smoothing=config.smoothing, batch_tokens=batch_tokens)
    reads = {"mode": f"rag-{config.marginal}", "prior_scale": config.prior_scale}
    return train_together(config, objective, reads, retriever=config.retriever, encode=encode)
