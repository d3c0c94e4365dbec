"""Commands, and groups of commands that are imported when they are used, so that help stays
fast.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from rag.core.errors import ConfigError, did_you_mean


class LazyGroup(TyperGroup):
    """A group that knows of each command its panel in the help and its summary, and loads it when
    it is used.

    Attributes:
        entries: name → panel, summary.
        load: function from a name to the command; refuses a name without one.
    """

    entries: ClassVar[Mapping[str, tuple[str, str]]] = {}
    load: Callable[[str], Any]

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the help."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with the summary."""
        if cmd_name not in self.entries:
            return None
        panel, summary = self.entries[cmd_name]
        return command_with(cmd_name, {}, lambda: None, help=summary, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself."""
        if args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        return args[0], self.load(args[0]), args[1:]


class _StrictCommand(TyperCommand):
    """A command that refuses an option with two values, of which the parser would take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `typer.core.TyperCommand`."""
        order: list[Any] = self.make_parser(ctx).parse_args(args=[*args])[2]
        for option in order:
            takes_one = option.param_type_name == "option" and not (
                option.multiple or option.is_flag
            )
            if takes_one and order.count(option) > 1:
                hint = "give one value; a list of values has commas, where the help says so"
                raise ConfigError(f"{option.opts[0]} is given twice", hint=hint)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # typer checks by pydantic
            raise


@contextmanager
def resumable() -> Iterator[None]:
    """Say at Ctrl-C that the work inside goes on when the command is given again."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues", err=True)
        raise


def check_name(
    name: str, entries: Mapping[str, Any], removed: Mapping[str, str] | None = None
) -> None:
    """Refuse a name that is no command, with the nearest one, or what is used instead of one that
    is gone.
    """
    if name not in entries:
        hint = did_you_mean(name, entries, f"there are {', '.join(entries)}")
        raise ConfigError(f"there is no command {name!r}", hint=(removed or {}).get(name, hint))


def group_of(
    about: str, entries: Mapping[str, tuple[str, str]], load: Callable[[str], Any], **shown: Any
) -> typer.Typer:
    """A group of commands; see `LazyGroup`."""
    kind = type("_Group", (LazyGroup,), {"entries": entries, "load": staticmethod(load)})
    group = typer.Typer(cls=kind, no_args_is_help=True, help=about, **shown)
    group.callback()(lambda: None)
    return group


def command_with(
    name: str,
    options: Mapping[str, tuple[Any, Any]],
    run: Callable[..., None],
    *,
    help: str,
    **shown: Any,
) -> Any:
    """A command with these options (name → annotation, default), whose values `run` gets."""

    def command(**values: Any) -> None:
        run(**values)

    parameters = [
        inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for each, (kind, default) in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__name__, command.__doc__, command.__annotations__ = name, help, {}
    single = typer.Typer(add_completion=False)
    single.command(name, cls=_StrictCommand, **shown)(command)
    made: Any = typer.main.get_command(single)
    made.name = name
    return made
