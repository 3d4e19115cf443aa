"""`headscope forward MODEL`."""

from headscope.api.arguments.checkpoint import CheckpointForward
from headscope.cli.options import Model, Output
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode


def forward_command(model: Model, options: CheckpointForward, output: Output) -> int:
    """Run a forward pass: the shape at each stage, and with real weights the score of each label."""
    is_scored = any(options.get(name) for name in ("text", "image", "audio"))
    options.setdefault("device", "cpu" if is_scored else "meta")  # scores need weights
    with telling_progress(output.quiet) as tell:
        from headscope import api

        report = api.forward(model, progress=tell, **options)
    from headscope.render.screens.forward import forward_document, forward_screen, forward_verdict

    screen = forward_verdict if output.quiet else forward_screen
    write_report(output, lambda: screen(report), lambda: forward_document(report))
    return ExitCode.UNDETERMINED if report.not_determined else ExitCode.OK
