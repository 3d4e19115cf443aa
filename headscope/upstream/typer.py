"""typer: what its help writes beside an option and in the line of usage, which it does not let an application say."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command whose help writes `MODEL...` where Typer writes `{MODEL}...`, and no type beside a flag."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words behind the command's name."""
        arguments = [item for item in self.params if item.param_type_name == "argument"]
        return [self.options_metavar or "", *map(_usage_of, arguments)]

    def get_params(self, ctx: Any) -> Any:
        """The arguments and options, those of Typer among them."""
        return [_without_type(item) for item in super().get_params(ctx)]


class PlainGroup(TyperGroup):
    """A group of commands whose help writes no type beside a flag."""

    def get_params(self, ctx: Any) -> Any:
        """The options, those of Typer among them."""
        return [_without_type(item) for item in super().get_params(ctx)]


def _usage_of(argument: Any) -> str:
    name = f"{argument.metavar}{'...' if argument.nargs != 1 else ''}"
    return name if argument.required else f"[{name}]"


def _without_type(item: Any) -> Any:
    """An argument or option whose help says no `<bool>` and no `<list[str]>`."""
    if item.param_type_name == "argument":
        item.display_type_rich = _no_type
    elif item.is_flag and item.metavar is None:
        item.metavar = ""
    return item


def _no_type(ctx: Any) -> None:
    """Nothing beside the name."""
