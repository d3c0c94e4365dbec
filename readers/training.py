"""Settings that the recipes of readers share; reading them imports no torch."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rag.training.config import Share, TrainConfig


class FineTuningConfig(TrainConfig):
    """Settings of recipes that fine-tune all layers of a network.

    Attributes:
        dropout: dropout of hidden states and attention weights.
    """

    group = "Model"

    dropout: Share = 0.0
    weight_decay: float = Field(default=0.01, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)


class TaughtConfig(FineTuningConfig):
    """Settings of recipes that may learn from a larger model of the same kind, too.

    Attributes:
        teacher: folder of the larger model, or "shipped"; how likely it finds each label of a row
            is learnt beside the labels.
        teacher_weight: share of the teacher's part in the loss; that of the labels has the rest.
        temperature: logits of teacher and student are divided by it.
    """

    group = "Teacher"

    teacher: str | None = None
    teacher_weight: float = Field(default=0.5, gt=0, le=1)
    temperature: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _cross_check_teacher(self) -> Self:
        for name in ("teacher_weight", "temperature"):
            is_default = getattr(self, name) == type(self).model_fields[name].default
            if self.teacher is None and not is_default:
                raise ValueError(
                    f"{name} is given, but no teacher: name it as teacher, or leave {name} out"
                )
        return self
