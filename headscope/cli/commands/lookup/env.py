"""`headscope env`."""

from headscope.cli.options import Pages
from headscope.cli.output import check_output, write_report


def env(output: Pages) -> int:
    """Show versions and settings for a bug report."""
    check_output(output.output)
    from headscope import api
    from headscope.render.screens.env import env_screen
    from headscope.render.text.document import environment_document

    surroundings = api.surroundings()
    write_report(output, lambda: env_screen(surroundings), lambda: environment_document(surroundings))
    return 0
