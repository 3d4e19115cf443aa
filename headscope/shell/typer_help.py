"""typer: parts of its help beside options and in the line of usage, which it lets no application change."""

import shlex
from typing import Any

from typer.core import TyperCommand, TyperGroup

from headscope.errors import UsageError

ALL_OPTIONS = "headscope.all_options"
"""Key in the `meta` of a context whose help shows every option."""


class TooManyWords(UsageError):
    """Raised for more arguments than a command takes: those that it took, and `words`, the rest.

    `option` is the repeatable option in front of the first of them, with its value; "" without one.
    """

    def __init__(
        self, command: str, usage: str, taken: tuple[str, ...], words: tuple[str, ...], option: str = ""
    ) -> None:
        super().__init__(
            f"{command} takes {f'one {usage}' if usage else 'no arguments'}; got {' '.join(taken + words)}"
        )
        self.command, self.taken, self.words, self.option = command, taken, words, option


class PlainCommand(TyperCommand):
    """Command whose help is short: examples first, then the options in `main_options` of its function.

    It writes `MODEL...` where Typer writes `{MODEL}...`, and no type beside a flag.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help, with the options of the main use or, for `--help-all`, with all."""
        main = {"help", "help_all", *getattr(self.callback, "main_options", ())}
        parts = [
            item
            for item in self.get_params(ctx)
            if item.param_type_name == "option" and not item.hidden and item.name not in main
        ]
        others = [] if ctx.meta.get(ALL_OPTIONS) else parts
        help, epilog = self.help, self.epilog
        try:
            # Typer prints the epilog last, and hides no option from the help alone: completion would lose it too.
            # Tags before the indentation of the examples keep it.
            lines = [f"[not dim]{line}[/not dim]" for line in (epilog or "").splitlines()]
            self.help, self.epilog = "\n".join((help or "", "", *lines)), None
            for item in others:
                item.hidden = True
            super().format_help(ctx, formatter)
        finally:
            self.help, self.epilog = help, epilog
            for item in others:
                item.hidden = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives the words that no argument takes, of which there may be none. Raises TooManyWords."""
        # Otherwise Click raises its own error, which doesn't name the arguments that were taken.
        ctx.allow_extra_args = True
        given = list(args)
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            arguments = [item for item in self.params if item.param_type_name == "argument"]
            taken = tuple(ctx.params[item.name] for item in arguments if isinstance(ctx.params.get(item.name), str))
            usage, before = " ".join(str(item.metavar) for item in arguments), given[: given.index(rest[0])][-2:]
            repeatable = {flag for item in self.params if getattr(item, "multiple", False) for flag in item.opts}
            option = shlex.join(before) if repeatable.intersection(before[:1]) else ""
            raise TooManyWords(str(ctx.info_name), usage, taken, tuple(rest), option)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Gives the words behind the command's name."""
        pieces = [self.options_metavar or ""]
        for item in self.params:
            if item.param_type_name == "argument":
                name = f"{item.metavar}{'...' if item.nargs != 1 else ''}"
                pieces.append(name if item.required else f"[{name}]")
        return pieces

    def get_params(self, ctx: Any) -> Any:
        """Gives the arguments and options, those of Typer among them."""
        return [_without_type(item) for item in super().get_params(ctx)]


class PlainGroup(TyperGroup):
    """Group of commands whose help writes no type beside a flag."""

    def get_params(self, ctx: Any) -> Any:
        """Gives the options, those of Typer among them."""
        return [_without_type(item) for item in super().get_params(ctx)]


def _without_type(item: Any) -> Any:
    """Removes `<bool>` and `<list[str]>` from the help of an argument or option."""
    if item.param_type_name == "argument":
        item.display_type_rich = lambda ctx: None
    elif item.is_flag and item.metavar is None:
        item.metavar = ""
    return item
