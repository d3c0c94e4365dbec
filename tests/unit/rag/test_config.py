"""Configurations: frozen, flat, overridable, unknown keys refused with the nearest match."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from rag.config import Config, load_config, parse_overrides
from rag.core.errors import ConfigError


class _Stage(Config):
    steps: int = 1


class _Training(Config):
    corpus: str = "c"
    learning_rate: float = 1e-4
    learning_rates: Mapping[str, float] = Field(default_factory=dict)
    warmup_steps: int = 10
    files: tuple[Path, ...] = ()
    stages: tuple[_Stage, ...] = ()


class _Either(Config):
    temperature: Annotated[float, Field(gt=0)] | Literal["auto"] = 1.0
    sizes: tuple[int, ...] | int = 1


class _Needs(Config):
    corpus: str


def test_defaults_file_and_overrides_in_that_order(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("warmup_steps: 5\nlearning_rate: 0.01\nfiles: a.json\n")
    config = load_config(
        _Training, path, overrides=parse_overrides(["learning_rate=2e-5", "corpus=d"])
    )
    assert config == _Training(
        corpus="d", learning_rate=2e-5, warmup_steps=5, files=(Path("a.json"),)
    )
    with pytest.raises(ValidationError):
        config.warmup_steps = 6  # type: ignore[misc]
    with pytest.raises(ValidationError, match="unable to parse"):
        config.replaced(warmup_steps="many")
    assert config.replaced(warmup_steps=6) == _Training(**{**dict(config), "warmup_steps": 6})


@pytest.mark.parametrize(
    ("kind", "content", "assignments", "message"),
    [
        (
            _Training,
            "",
            ["warmup_step=3"],
            "unknown setting 'warmup_step'; did you mean 'warmup_steps'",
        ),
        (_Training, "", ["warmup_steps=many"], "warmup_steps = 'many'"),
        (
            _Either,
            "",
            ["temperature=0"],
            "temperature = 0: expected greater than 0, or expected 'auto'",
        ),
        (
            _Either,
            "",
            ["sizes=x"],
            "sizes = 'x': expected a valid tuple, or expected a valid integer",
        ),
        (_Training, "", ["learning_rates={a: fast}"], "learning_rates.a = 'fast'"),
        (_Training, "", ["stages=[{stesp: 3}]"], "unknown setting 'stages.0.stesp'"),
        (
            _Training,
            "optim: {learning_rate: 3}",
            [],
            "unknown setting 'optim'; there are corpus, learning_",
        ),
        (_Training, "- 1", [], "expected a mapping"),
        (_Training, "a: [", [], "not readable as YAML"),
        (_Training, "", ["novalue"], "expected key=value"),
        (_Training, "", ["=3"], "expected key=value"),
        (_Training, "", ["seed=1", "seed=2"], "each key once"),
        (_Needs, "", [], r"corpus= is not given"),
    ],
)
def test_wrong_settings_are_explained(
    tmp_path: Path, kind: Any, content: str, assignments: list[str], message: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_config(kind, path, overrides=parse_overrides(assignments))
    with pytest.raises(ConfigError, match="no configuration file and no preset named 'nonsense'"):
        load_config(kind, "nonsense")
