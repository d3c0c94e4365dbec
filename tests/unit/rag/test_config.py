"""Configurations: frozen, flat, overridable, unknown keys refused with the nearest match."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from rag.config import Config, load_config, parse_overrides
from rag.core.errors import ConfigError
from tests.support.messages import refusal


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
    with pytest.raises(ValidationError, match="unable to parse"):
        config.replaced(warmup_steps="many")
    assert config.replaced(warmup_steps=6) == _Training(**{**dict(config), "warmup_steps": 6})


WRONG = {
    "unknown setting": (_Training, "", ["warmup_step=3"]),
    "text for a number": (_Training, "", ["warmup_steps=many"]),
    "number without an end": (_Training, "", ["learning_rate=.inf"]),
    "neither number nor word": (_Either, "", ["temperature=0"]),
    "neither numbers nor number": (_Either, "", ["sizes=x"]),
    "text in a mapping": (_Training, "", ["learning_rates={a: fast}"]),
    "unknown setting in a list": (_Training, "", ["stages=[{stesp: 3}]"]),
    "mapping that is none": (_Training, "optim: {learning_rate: 3}", []),
    "list for a mapping": (_Training, "- 1", []),
    "no YAML": (_Training, "a: [", []),
    "no value": (_Training, "", ["novalue"]),
    "no key": (_Training, "", ["=3"]),
    "key twice": (_Training, "", ["seed=1", "seed=2"]),
    "nothing for what is needed": (_Needs, "", []),
}


@pytest.mark.parametrize(("kind", "content", "assignments"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_explained(
    tmp_path: Path, kind: Any, content: str, assignments: list[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with refusal(ConfigError):
        load_config(kind, path, overrides=parse_overrides(assignments))
    with refusal(ConfigError):
        load_config(kind, "nonsense")
