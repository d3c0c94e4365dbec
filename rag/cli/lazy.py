"""Groups of commands that are imported when they are used, so that help stays fast."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from rag.core.errors import ConfigError, did_you_mean


class LazyGroup(TyperGroup):
    """A group that knows of each command its panel in the help and its summary, and loads it when it is used.

    Attributes:
        entries: name → panel, summary.
        removed: name of a command that is gone → what to use instead.
    """

    entries: ClassVar[Mapping[str, tuple[str, str]]] = {}
    removed: ClassVar[Mapping[str, str]] = {}

    def load(self, name: str) -> Any:
        """The command, from the module that has it."""
        raise NotImplementedError

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the help."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with the summary."""
        if cmd_name not in self.entries:
            return None
        panel, summary = self.entries[cmd_name]
        return command_of(cmd_name, lambda: None, help=summary, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself.

        Raises:
            ConfigError: there is none of this name; with the nearest, or what is used instead.
        """
        name = args[0]
        if name in self.entries:
            return name, self.load(name), args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        hint = did_you_mean(name, self.entries, f"there are {', '.join(self.entries)}")
        raise ConfigError(f"there is no command {name!r}", hint=self.removed.get(name, hint))


def command_of(name: str, function: Callable[..., None], **shown: Any) -> Any:
    """A command made of a function."""
    single = typer.Typer(add_completion=False)
    single.command(name, **shown)(function)
    command: Any = typer.main.get_command(single)
    command.name = name
    return command
