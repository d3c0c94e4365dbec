"""Configurations: frozen, overridable, unknown keys refused with the nearest match."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rag.config import Config, load_config, parse_overrides
from rag.core.errors import ConfigError


class _Optim(Config):
    lr: float = 1e-4
    warmup_steps: int = 10


class _Training(Config):
    steps: int = 100
    name: str = "x"
    optim: _Optim = _Optim()


def test_defaults_file_and_overrides_in_that_order(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("steps: 5\noptim:\n  lr: 0.01\n  warmup_steps: 3\n")
    config = load_config(_Training, path, overrides=parse_overrides(["optim.lr=2e-5", "name=dpr"]))
    assert config == _Training(steps=5, name="dpr", optim=_Optim(lr=2e-5, warmup_steps=3))
    with pytest.raises(ValidationError):
        config.steps = 6  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stesp=3", "unknown setting 'stesp'; did you mean 'steps'"),
        ("optim.warmup=3", "unknown setting 'optim.warmup'; did you mean 'warmup_steps'"),
        ("steps=many", "steps = 'many'"),
        ("optim.lr=[1]", r"optim\.lr = "),
    ],
)
def test_wrong_settings_are_explained(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(_Training, overrides=parse_overrides([override]))


@pytest.mark.parametrize("text", ["novalue", "=3", "a..b=3"])
def test_malformed_assignments(text: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_overrides([text])


@pytest.mark.parametrize(("text", "words"), [("- 1", "expected a mapping"), ("a: [", "not readable as YAML")])
def test_broken_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(_Training, path)


def test_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="no configuration file and no preset named 'nonsense'"):
        load_config(_Training, "nonsense")


def test_a_missing_setting_is_named() -> None:
    class _Needs(Config):
        corpus: str

    with pytest.raises(ConfigError, match="corpus is not given, and has no default"):
        load_config(_Needs)
