"""`probe`: which vector of a checkpoint classifies labeled texts best."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Unpack

from headscope.checks.options import LabeledOptions  # noqa: F401  the docstring refers to it
from headscope.core.source.request import Progress, is_in_memory
from headscope.errors import UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.options.option import with_defaults
from headscope.shell.shown import Shown, fields_of
from headscope.shell.values import make_request, options_of, read_names, read_path
from headscope.slices.probe.facts.result import ProbeResult
from headscope.slices.probe.options import ModelOptions, ProbeOptions
from headscope.slices.probe.plan import PROBLEM_NAMES, TASK_OF, Plan, input_of


class Probed(Shown, ProbeResult):
    """The result of `probe`."""

    __slots__ = ()

    def code(self) -> str:
        """A Python module with a classifier on the best vector."""
        from headscope.slices.probe.screen.code import probe_code

        return probe_code(self)


@use_case
def probe(
    reference: str | PathLike[str],
    *,
    data: str | PathLike[str],
    label_column: str | Iterable[str],
    progress: Progress | None = None,
    **options: Unpack[ProbeOptions],
) -> Probed:
    """Scores every vector that a classifier of texts could read, on labeled texts, and reports which is best.

    headscope runs the real model once over the texts. It scores each vector with a cross-validated linear model on
    standardized features, whose strength is chosen inside the folds: logistic regression for classes, one for each
    class where a text can have several, and ridge for numbers. Needs scikit-learn:
    `pip install "headscope[probe]"`.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, or a local folder or weight file.
        data: See `LabeledOptions`.
        label_column: See `LabeledOptions`.
        options: See `ProbeOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The candidates with their scores and intervals, the baselines, the name of the best candidate, and how
        it compares with the head of the class and with TF-IDF.

    Raises:
        UsageError: An option is unknown or has an invalid value, or the labels leave nothing to predict.
        HeadscopeError: The checkpoint or the data can't be read, scikit-learn is not installed, or the model fails.

    Example:
        >>> from pathlib import Path
        >>> import headscope
        >>> from transformers import BertConfig, BertModel, BertTokenizer
        >>> words = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad a b c d e f".split()
        >>> BertModel(BertConfig(hidden_size=12, num_hidden_layers=2, vocab_size=len(words))).save_pretrained("saved")
        >>> _ = BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained("saved")
        >>> rows = [f"{label} {one} {two},{label}" for label in ("good", "bad") for one in "abcdef" for two in "abcdef"]
        >>> _ = Path("rows.csv").write_text("\\n".join(["text,label", *rows]))
        >>> result = headscope.probe("saved", data="rows.csv", text_column="text", label_column="label")
        >>> result.candidate(result.best).mean
        1.0
        >>> result.head_input.classifier
        'classifier'
    """
    if is_in_memory(reference):
        raise UsageError(
            "probe needs a tokenizer or a processor, and a model in memory has none",
            'save both, model.save_pretrained("saved") and tokenizer.save_pretrained("saved"), and give "saved"; for '
            "images and sounds, save the processor instead of the tokenizer",
        )
    own = with_defaults(ProbeOptions, options)
    asked = next((problem for problem, name in PROBLEM_NAMES.items() if name == own["problem_type"]), None)
    written = read_path(own["write_head"], "write_head")
    names = ("limit", "folds", "seed", "device", "batch_size", "dtype")
    plan = Plan(**{name: own[name] for name in names}, write_head=None if written is None else Path(written))
    from headscope.slices.probe.scoring.scores import check_installed

    check_installed()
    request = make_request(reference, options_of(ModelOptions, options))
    input, column = input_of(own["text_column"] or (), own["image_column"], own["audio_column"])
    if request.model_class is None:
        request = replace(request, task=TASK_OF[input].value)
    from headscope.slices.probe.data.rows import count_labels

    columns, labels = _read_columns(column, "text_column"), _read_columns(label_column, "label_column")
    labeled = count_labels(read_path(data, "data") or "", columns, labels, own["split"], asked, input)
    from headscope.slices.probe.measurement import measure_vectors

    folder = read_path(own["features"], "features")
    with tempfile.TemporaryDirectory(prefix="headscope-files-", ignore_cleanup_errors=True) as files:
        result = measure_vectors(request, labeled, plan, folder, Path(files), progress or (lambda sentence: None))
    return Probed(**fields_of(result))


def _read_columns(given: str | Iterable[str], option: str) -> tuple[str, ...]:
    """Reads the name of one column, or of several."""
    # A text is one column: unlike names of classes, names of columns may hold commas.
    return (given,) if isinstance(given, str) else read_names(given, option)
