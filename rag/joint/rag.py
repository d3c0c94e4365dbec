"""Train a question encoder and a generator through the passages between them (RAG)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from rag.joint.losses import rag_loss
from rag.joint.together import train_generator_alone, train_together
from rag.joint.together_config import JointTrainConfig
from rag.training.refresh.processes import Role
from readers.generative.marginal import Marginal
from readers.generative.marginal_decoding import Decoding


class RagTrainConfig(JointTrainConfig):
    """Settings of `rag train rag`.

    Attributes:
        marginal: "sequence" marginalises over passages per whole answer, "token" per token of the answer.
        smoothing: label smoothing of the marginal likelihood.
        decoding: decoding of the finished reader, see `GeneratorSettings`.
        retriever: "trained", or a fixed retriever of the index (`retrievers.open`) such as "bm25": then only
            the generator is trained, with that retriever's passages.
        prior_scale: factor on such a retriever's scores, whose softmax is p(z|x).
    """

    recipe: ClassVar[str] = "rag"

    name: str = Field(default="rag", min_length=1)
    marginal: Marginal = "sequence"
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    decoding: Decoding = "thorough"
    retriever: str = "trained"
    prior_scale: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _cross_check_retriever(self) -> RagTrainConfig:
        if self.retriever == "trained":
            if self.prior_scale != 1:
                raise ValueError("prior_scale is for a fixed retriever: a trained one learns its scale")
            return self
        if self.document_side != "frozen":
            raise ValueError(f"retriever {self.retriever} is fixed: leave document_side at frozen")
        return self


def train_rag(config: RagTrainConfig, *, role: Role = "both") -> Path:
    """Train RAG, or resume the run that `config.out` holds: see `train_together` for what is written.

    With `document_side` "reencode" it is trained end to end; with a `retriever` that stays as it is the
    generator alone is.

    Raises:
        DataError: a file is wrong, or no question has an answer.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or the index's encoder
            is not the model's.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks"; end to end:
        Siriwardhana et al. 2023, "Improving the Domain Adaptation of Retrieval Augmented Generation (RAG)
        Models for Open Domain Question Answering".

    Note:
        One of a question's answers is drawn each time, where the paper makes an example of every pair.
    """
    batch_tokens = config.reader.batch_tokens or 8192
    objective = partial(rag_loss, config.marginal, smoothing=config.smoothing, batch_tokens=batch_tokens)
    reads = {"mode": f"rag-{config.marginal}", "decoding": config.decoding}
    if config.retriever != "trained":
        return train_generator_alone(config, objective, reads, config.retriever, config.prior_scale)
    return train_together(config, objective, reads, role=role)
