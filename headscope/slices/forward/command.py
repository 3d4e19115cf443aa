"""`headscope forward MODEL`."""

from headscope.errors import ExitCode
from headscope.shell.arguments import Model, Output
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress
from headscope.slices.forward.options import CheckpointForward


def forward_command(model: Model, options: CheckpointForward, output: Output) -> int:
    """Run a forward pass: the shape at each stage, and with real weights the score of each label."""
    is_scored = any(options.get(name) for name in ("text", "image", "audio"))
    options.setdefault("device", "cpu" if is_scored else "meta")  # scores need weights
    with telling_progress(output.quiet) as tell:
        from headscope.slices.forward.run import forward

        report = forward(model, progress=tell, **options)
    from headscope.slices.forward.screen import forward_screen, forward_verdict

    screen = forward_verdict if output.quiet else forward_screen
    write_report(output, lambda: screen(report), report.to_dict)
    return ExitCode.UNDETERMINED if report.not_determined else ExitCode.OK
