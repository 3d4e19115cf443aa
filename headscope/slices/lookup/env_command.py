"""`headscope env`."""

from headscope.shell.arguments import Pages
from headscope.shell.output import write_report


def env_command(output: Pages) -> int:
    """Show versions and settings for a bug report."""
    from headscope.core.source.environment import surroundings
    from headscope.slices.lookup.env_screen import env_screen, environment_document

    found = surroundings()
    write_report(output, lambda: env_screen(found), lambda: environment_document(found))
    return 0
