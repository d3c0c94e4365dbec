"""The schedule of the learning rate."""

from pathlib import Path

import pytest

from rag.training.config import TrainConfig, schedule_factor


def test_the_rate_rises_and_falls_on_straight_lines_or_stays() -> None:
    config = TrainConfig(out=Path("run"), name="toy", warmup_steps=200)
    factors = [schedule_factor(config, step, 1000) for step in (0, 199, 200, 600, 999)]
    assert factors == pytest.approx([1 / 200, 1.0, 1.0, 0.5, 1 / 800])
    for warmup in (2, 0.2):
        config = TrainConfig(out=Path("run"), name="toy", schedule="constant", warmup_steps=warmup)
        assert [schedule_factor(config, step, 10) for step in range(10)] == [0.5] + [1.0] * 9
