"""`headscope env`."""

from headscope.cli.options import Pages
from headscope.cli.output import write_report


def env_command(output: Pages) -> int:
    """Show versions and settings for a bug report."""
    from headscope.examination.base.environment import surroundings
    from headscope.render.screens.lookup.env import env_screen
    from headscope.render.text.document import environment_document

    found = surroundings()
    write_report(output, lambda: env_screen(found), lambda: environment_document(found))
    return 0
