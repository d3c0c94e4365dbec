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

    with pytest.raises(ConfigError, match=r"corpus \(--set corpus=…\) is not given"):
        load_config(_Needs)


class _Run(Config):
    threads: int = 1
    validate_every: int = 0
    seed: int = 0


class _Data(Config):
    seed: int = 0


class _Recipe(Config):
    optim: _Optim = _Optim(lr=3e-4)
    run: _Run = _Run()
    data: _Data = _Data()


def test_a_setting_of_a_group_may_be_given_with_and_without_the_group(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("lr: 0.01\nvalidate_every: 7\nrun: {threads: 2}\n")
    config = load_config(_Recipe, path, overrides=parse_overrides(["optim.warmup_steps=3"]))
    assert config == _Recipe(optim=_Optim(lr=0.01, warmup_steps=3), run=_Run(threads=2, validate_every=7))
    for spelling in ("lr=0.5", "optim.lr=0.5"):  # either wins over the file's
        assert load_config(_Recipe, path, overrides=parse_overrides([spelling])).optim.lr == 0.5


def test_what_a_recipe_says_of_a_group_stays_where_a_part_of_it_is_given() -> None:
    assert _Recipe(warmup_steps=5).optim == _Optim(lr=3e-4, warmup_steps=5)  # type: ignore[call-arg]
    assert _Recipe(optim={"warmup_steps": 5}).optim.lr == 3e-4  # type: ignore[arg-type]
    changed = _Recipe(warmup_steps=5).replaced(lr=1e-3, run={"threads": 4})  # type: ignore[call-arg]
    assert changed == _Recipe(optim=_Optim(lr=1e-3, warmup_steps=5), run=_Run(threads=4))


def test_settings_by_their_short_names_are_read_back() -> None:
    config = _Recipe(lr=0.25, run=_Run(seed=4))  # type: ignore[call-arg]
    shown = config.flat()
    assert shown == {
        "lr": 0.25, "warmup_steps": 10, "threads": 1, "validate_every": 0, "run.seed": 4, "data.seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=3"], "unknown setting 'seed'"),  # two groups have one
        (["warmup_step=3"], "unknown setting 'warmup_step'; did you mean 'warmup_steps'"),
        (["optim.warmup_step=3"], "unknown setting 'optim.warmup_step'; did you mean 'warmup_steps'"),
        (["lr=3", "optim.lr=4"], "lr is given twice"),
        (["optim=3"], "optim = 3"),
    ],
)
def test_wrong_settings_of_groups_are_explained(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(_Recipe, overrides=parse_overrides(overrides))
