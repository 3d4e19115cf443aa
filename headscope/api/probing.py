"""`probe`: which vector of a checkpoint classifies labeled texts best."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from headscope.api.options import DeviceName, given_options, make_request, read_names, read_path, refuses_unknown
from headscope.api.shown import Probed
from headscope.errors import Unsupported, UsageError
from headscope.examination.checkpoint import Examined, examine
from headscope.examination.in_memory import is_in_memory
from headscope.examination.labeled import DataRequest, read_labeled
from headscope.examination.loading import choose_class
from headscope.examination.reading import WITHOUT_WEIGHTS, loadable
from headscope.examination.request import Progress, Request
from headscope.facts import CheckpointManifest, Report, Task, Unavailable
from headscope.facts.counting import counted, few_of
from headscope.facts.environment import tool_version
from headscope.facts.labeled import DataFacts
from headscope.facts.probe import (
    Baseline,
    BaselineKind,
    HeadInput,
    Input,
    Loading,
    ProbeClass,
    ProbeFirst,
    Problem,
    StartingLoss,
    Vector,
)
from headscope.facts.report import find_missing

if TYPE_CHECKING:
    from headscope.labeled import Source as Labeled
    from headscope.model.model_request import Choice
    from headscope.probing.comparison import Rated, Scored
    from headscope.probing.opening import Source
    from headscope.probing.rows import Kind, Rows
    from headscope.probing.scores import Trial
    from headscope.probing.store import Features

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
"""The dtypes that the model may run in."""

ProbeTask = Literal["single-label", "multi-label", "regression"]
"""What the labels of `probe` are."""


@refuses_unknown
def probe(
    reference: str | PathLike[str],
    *,
    data: str | PathLike[str],
    text_column: str | Iterable[str] = (),
    image_column: str | None = None,
    audio_column: str | None = None,
    label_column: str | Iterable[str],
    task: ProbeTask | None = None,
    split: str | None = None,
    limit: int = 2000,
    folds: int = 5,
    seed: int = 0,
    device: DeviceName = "cpu",
    batch_size: int = 32,
    features: str | PathLike[str] | None = None,
    dtype: DtypeName = "auto",
    model_class: str | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Probed:
    """Scores every vector that a classifier of texts could read, on labeled texts, and reports which is best.

    headscope runs the real model once over the texts. It scores each vector with a cross-validated linear model on
    standardized features, whose strength is chosen inside the folds: logistic regression for classes, one for each
    class where a text can have several, and ridge for numbers. Needs scikit-learn:
    `pip install "headscope[probe]"`.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, or a local folder or weight file.
        data: Labeled texts: a csv, tsv, jsonl or parquet file, or a folder that `datasets` saved.
        text_column: The column of the texts; two for pairs.
        image_column: Instead of texts, the column of images: paths relative to the data, or files in the cells.
        audio_column: Instead of texts, the column of 16-bit WAV files.
        label_column: The column of the labels; several for columns of 0 and 1, one for each class.
        task: `single-label`, `multi-label` or `regression` (default: from the labels).
        split: The split of a folder that holds several.
        limit: Largest number of rows to use; of more, a sample with the same share of each class.
        folds: Number of folds of the cross-validation.
        seed: Seed of the sample, the folds, the bootstrap, the tests, and weights that the checkpoint lacks.
        device: Where the model runs: `cpu`, `cuda`, `cuda:0` or `mps`.
        batch_size: Number of texts that run together.
        features: Folder for the vectors, which are kept there as `.npy` files (default: a temporary folder). The next
            run uses them if the checkpoint, the texts, the options and the versions are the same.
        dtype: `float32`, `bfloat16` or `float16`; `auto` is float32 on the CPU, and elsewhere the checkpoint's half
            precision if it changes no vector of sample texts.
        model_class: A class of Transformers, such as `BertForSequenceClassification`.
        revision: Branch, tag or commit on the Hub (default: `main`).
        subfolder: Folder inside the repository or the local folder.
        variant: Variant of the weight files, such as `fp16` for `model.fp16.safetensors`.
        cache_dir: The Hub's cache folder (default: `$HF_HUB_CACHE`).
        token: Access token for gated and private repositories (default: `$HF_TOKEN` or the stored login).
        offline: Make no network requests.
        trust_remote_code: Run model code that comes with the checkpoint.
        timeout: Total time limit for Hub requests, in seconds (default: 120).
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
    options = given_options(locals(), *_OF_PROBE)
    if is_in_memory(reference):
        raise UsageError(
            "probe needs a tokenizer, and a model in memory has none", "save the model, and give its folder"
        )
    asked = _problem(task)
    plan = _Plan(limit, folds, seed, device, batch_size, dtype)
    from headscope.probing.scores import check_installed

    check_installed()
    request = make_request(reference, options)
    input, column = _input(text_column, image_column, audio_column)
    if request.model_class is None:
        request = replace(request, task=_TASK_OF[input].value)
    given = _count_labels(data, column, label_column, split, asked, input)
    folder = read_path(features, "features")
    with tempfile.TemporaryDirectory(prefix="headscope-files-", ignore_cleanup_errors=True) as files:
        return _probe(request, given, plan, folder, Path(files), progress or (lambda sentence: None))


def _input(
    text_column: str | Iterable[str], image_column: str | None, audio_column: str | None
) -> tuple[Input, str | Iterable[str]]:
    """What is classified, and its column. Raises UsageError unless one kind was named."""
    columns = {Input.TEXT: text_column, Input.IMAGE: image_column, Input.AUDIO: audio_column}
    given = {kind: column for kind, column in columns.items() if column}
    if len(given) > 1:
        raise UsageError(f"columns of {' and of '.join(given)} were given", "give one kind of them")
    for kind, column in given.items():
        if kind is not Input.TEXT and not isinstance(column, str):
            raise UsageError(f"{kind.value}_column must be a name, not {column!r}", "give one column")
        return kind, column
    raise UsageError(
        "data was given without the column of its texts", "add --text-column, --image-column or --audio-column COLUMN"
    )


_TASK_OF = {
    Input.TEXT: Task.SEQUENCE_CLASSIFICATION,
    Input.IMAGE: Task.IMAGE_CLASSIFICATION,
    Input.AUDIO: Task.AUDIO_CLASSIFICATION,
}


_OF_PROBE = (
    "reference", "data", "text_column", "image_column", "audio_column", "label_column", "task", "split",
    "limit", "folds", "seed", "device",
    "batch_size", "features", "dtype", "progress",
)  # fmt: skip
_FEWEST = {"limit": 10, "folds": 2, "seed": 0, "batch_size": 1}
_MOST_SEED = 2**32


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the texts are read and scored."""

    limit: int
    folds: int
    seed: int
    device: str
    batch_size: int
    dtype: str = "auto"

    def __post_init__(self) -> None:
        """Raises UsageError for an invalid number."""
        for name, least in _FEWEST.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value < _MOST_SEED:
                raise UsageError(
                    f"{name} must be a whole number from {least}, not {value!r}", f"leave {name} out for its default"
                )
        if self.device == "meta":
            raise UsageError("probe runs the real weights, and the device is meta", "give cpu or cuda")
        if self.dtype not in get_args(DtypeName):
            raise UsageError(f"no such dtype: {self.dtype!r}", f"dtypes: {', '.join(get_args(DtypeName))}")


_TASKS = {
    "single-label": Problem.SINGLE_LABEL,
    "multi-label": Problem.MULTI_LABEL,
    "regression": Problem.REGRESSION,
}


def _problem(task: ProbeTask | None) -> Problem | None:
    if task is not None and task not in _TASKS:
        raise UsageError(f"no such task for probe: {task!r}", f"tasks: {', '.join(_TASKS)}")
    return None if task is None else _TASKS[task]


@dataclass(frozen=True, slots=True)
class _Data:
    """The counted labeled data, the requested problem, and what is classified."""

    facts: DataFacts
    source: Labeled
    asked: Problem | None
    input: Input = Input.TEXT


def _count_labels(  # noqa: PLR0917  a step of `probe`, all of whose names it uses
    data: str | PathLike[str],
    text_column: str | Iterable[str],
    label_column: str | Iterable[str],
    split: str | None,
    asked: Problem | None,
    input: Input,
) -> _Data:
    """What is in the columns of the labels. Raises UsageError for columns that are not there."""
    columns = (text_column,) if isinstance(text_column, str) else read_names(text_column, "text_column")
    labels = (label_column,) if isinstance(label_column, str) else read_names(label_column, "label_column")
    request = DataRequest(read_path(data, "data") or "", labels, columns, split)
    from headscope.labeled import open_data
    from headscope.probing.rows import check_numbers

    if asked is Problem.REGRESSION and len(labels) == 1:
        check_numbers(open_data(request.file, split), labels[0])
    facts = read_labeled(request).facts
    source = open_data(facts.file, split)
    if input is not Input.TEXT:
        from headscope.probing.media import with_names

        source = with_names(source, columns[0])
    return _Data(facts, source, asked, input)


def _probe(  # noqa: PLR0917  a step of `probe`, all of whose names it uses
    request: Request, data: _Data, plan: _Plan, folder: str | None, files: Path, tell: Progress
) -> Probed:
    request, examined, texts = _examined(request, data, plan, tell)
    report, manifest = examined.report, examined.manifest
    choice = examined.choice or choose_class(request, manifest)
    from headscope.probing.candidates import classifier_of, list_vectors
    from headscope.probing.comparison import compare_best, hear_opinions, score_of_choice, score_vectors
    from headscope.probing.label_facts import describe_labels
    from headscope.probing.numbers import feature_numbers
    from headscope.probing.scores import make_trial
    from headscope.probing.start import outputs_of

    classifier = classifier_of(report.head)
    name = classifier if isinstance(classifier, str) else ""
    with _folder(folder) as place:
        source = replace(_source(request, examined, choice, name, plan), input=data.input)
        given = _files_of(data, texts, files)
        features = _features(request, manifest, source, given, plan, _Place(place, folder is not None), tell)
        vectors, head = list_vectors(features), _head_input(report, name, features)
        trial = make_trial(texts.labels, texts.groups, plan.folds, plan.seed, texts.problem)
        new = {Vector.HEAD: head.new if head else (), Vector.POOLER: _new_pooler(report)}
        scored = score_vectors(vectors, trial, new, tell)
        tell("scoring the baselines")
        numbers = feature_numbers(vectors, features)
        outputs = outputs_of(texts, report.model)
        rivals, gaps = _rivals(texts, trial, report, features, outputs, data.input)
    place_of_head = scored.place(Vector.HEAD.value)
    against = {} if place_of_head is None else {Vector.HEAD.value: scored.rated[place_of_head]}
    against |= {kind.value: rated for kind, rated in rivals.items()}
    versus = tuple(compare_best(scored, name, rated, trial) for name, rated in against.items())
    is_new = _is_new(report, name)
    start = _start(texts, trial, features, outputs, is_new=is_new)
    lost = (classifier,) if isinstance(classifier, Unavailable) else ()
    return Probed(
        tool_version=tool_version(),
        reference=request.reference,
        data=texts.facts.file,
        texts=len(texts.texts),
        available=texts.available,
        distinct=int(texts.groups.max()) + 1,
        classes=_sizes(texts),
        folds=plan.folds,
        seed=plan.seed,
        device=plan.device,
        padded=features.padded,
        layers=features.layers - 1,
        candidates=scored.candidates,
        baselines=tuple(_baseline(kind, rated) for kind, rated in rivals.items()),
        best=scored.candidates[scored.best].name,
        head=Vector.HEAD.value if head else None,
        selected=score_of_choice(scored, trial),
        versus=versus,
        problem=texts.problem,
        opinions=hear_opinions(scored.candidates),
        labels=describe_labels(texts, scored.rated[scored.best].values, scored.losses[scored.best]),
        start=start,
        probe_first=_probe_first(scored, rivals, trial, start, head, data.input, features, is_new=is_new),
        head_input=head,
        left_out=(*features.left_out, *gaps),
        notes=(*texts.notes, *_note_on_base(report), *features.notes),
        not_determined=(*lost, *features.not_determined),
        numbers=numbers,
        loading=_loading(request, source),
    )


def _files_of(data: _Data, texts: Rows, folder: Path) -> tuple[tuple[str, ...], ...]:
    """The texts, or the paths of the images or sounds."""
    if data.input is Input.TEXT:
        return texts.texts
    from headscope.labeled import open_data
    from headscope.probing.media import written

    source = open_data(texts.facts.file, texts.facts.split)
    names = [name for (name,) in texts.texts]
    return tuple((path,) for path in written(source, texts.facts.text_columns[0], names, folder))


def _source(request: Request, examined: Examined, choice: Choice, classifier: str, plan: _Plan) -> Source:
    """Where the model comes from; its stored dtype is that of most of its numbers."""
    from headscope.probing.opening import Source

    sizes: Counter[str] = Counter()
    for tensor in examined.manifest.tensors:
        sizes[tensor.dtype] += prod(tensor.shape)
    stored = sizes.most_common(1)[0][0] if sizes else "float32"
    place = loadable(request, examined.manifest)
    return Source(choice, place, stored, classifier, plan.seed, _new_names(examined.report))


@dataclass(frozen=True, slots=True)
class _Place:
    """The folder of the vectors, and whether they are kept there."""

    folder: Path
    is_kept: bool


def _features(  # noqa: PLR0917  a step of `_probe`, all of whose names it uses
    request: Request,
    manifest: CheckpointManifest,
    source: Source,
    texts: tuple[tuple[str, ...], ...],
    plan: _Plan,
    place: _Place,
    tell: Progress,
) -> Features:
    """The vectors of an earlier run with everything the same, or those of a pass over the texts."""
    from headscope.probing.features import extract_features
    from headscope.probing.opening import open_reader
    from headscope.probing.origin import origin_of
    from headscope.probing.store import keep_manifest, read_kept

    if place.is_kept:
        are_files = source.input is not Input.TEXT
        origin = origin_of(request, manifest, texts, _options(request, source, plan), are_files=are_files)
        kept = read_kept(place.folder, origin)
        if not isinstance(kept, str):
            tell(f"using the vectors in {place.folder}")
            return kept
        _clear(place.folder)
    tell(f"loading {manifest.bytes_total / 1e9:.2f} GB of weights")
    reader = open_reader(source, plan.device, plan.dtype, texts)
    found = extract_features(reader, texts, place.folder, batch_size=plan.batch_size, tell=tell)
    if place.is_kept:
        keep_manifest(place.folder, origin, found)
        found = found.with_note(f"the vectors in {place.folder} were computed again: {kept}") if kept else found
    return found


def _options(request: Request, source: Source, plan: _Plan) -> dict[str, str]:
    """What the vectors depend on beside the checkpoint and the texts, by name."""
    return {
        "class": f"{source.choice.cls.__name__} {source.choice.config.num_labels} {source.classifier}",
        "remote code": str(request.trust_remote_code),
        "seed": str(plan.seed),
        "device": plan.device,
        "dtype": plan.dtype,
        "batch size": str(plan.batch_size),
    }


def _loading(request: Request, source: Source) -> Loading:
    place, choice = source.place, source.choice
    return Loading(
        reference=place.reference,
        revision=place.commit or place.revision,
        subfolder=place.subfolder,
        model_class=choice.cls.__name__,
        encoder_decoder=bool(getattr(choice.config, "is_encoder_decoder", False)),
        remote_code=bool(request.trust_remote_code),
        input=source.input,
    )


def _examined(request: Request, data: _Data, plan: _Plan, tell: Progress) -> tuple[Request, Examined, Rows]:
    """The checkpoint and the rows; a head that the checkpoint doesn't give has an output for each class of the data."""
    from headscope.probing.candidates import classifier_of
    from headscope.probing.rows import problem_of, read_rows

    examined = examine("probe", request, tell)
    _check_checkpoint(request, examined.manifest, examined.report, data.input)
    problem = problem_of(data.facts, examined.report.model, data.asked)
    rows = read_rows(
        data.source, data.facts, problem, limit=plan.limit, folds=plan.folds, seed=plan.seed, kind=_kind(data)
    )
    outputs = len(rows.classes) or 1
    classifier = classifier_of(examined.report.head)
    is_other = examined.report.model.num_labels != outputs
    if is_other and isinstance(classifier, str) and _is_new(examined.report, classifier):
        request = replace(request, num_labels=outputs)
        examined = examine("probe", request, tell)
    return request, examined, rows


def _kind(data: _Data) -> Kind:
    """What the rows hold. Equal images under two names are one: they must not be in two folds."""
    from headscope.probing.rows import Kind

    if data.input is Input.TEXT:
        return Kind()
    from headscope.probing.media import content_of

    return Kind(data.input, content_of(data.source))


def _is_new(report: Report, classifier: str) -> bool:
    """Whether the checkpoint doesn't give the weights of the classifier."""
    return bool(classifier) and any(name.startswith(f"{classifier}.") for name in find_missing(report).head)


def _sizes(texts: Rows) -> tuple[ProbeClass, ...]:
    if texts.problem is Problem.REGRESSION:
        return ()
    is_several = texts.problem is Problem.MULTI_LABEL
    counts = [
        int((texts.labels[:, at] if is_several else texts.labels == at).sum()) for at in range(len(texts.classes))
    ]
    return tuple(ProbeClass(label, count) for label, count in zip(texts.classes, counts, strict=True))


def _check_checkpoint(request: Request, manifest: CheckpointManifest, report: Report, input: Input) -> None:
    """Raises Unsupported for a checkpoint without weights, and for another task."""
    if manifest.kind in WITHOUT_WEIGHTS:
        raise Unsupported(
            f"{request.reference} is {WITHOUT_WEIGHTS[manifest.kind]}, so there are no vectors to score",
            "give the folder or the Hub ID of a whole checkpoint",
        )
    task = _TASK_OF[input]
    if report.model.task is not task:
        raise Unsupported(
            f"probe scores vectors of whole {input.noun}s, and {report.model.class_name} is for "
            f"{report.model.task.value}",
            f"leave out --model-class, or name a class for {task.value.replace('-', ' ')}",
        )


@contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    """The folder for the vectors: the caller's, made where it isn't there, or one that is removed again."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="headscope-probe-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    place = Path(given)
    try:
        place.mkdir(parents=True, exist_ok=True)
        strangers = sorted(item.name for item in place.iterdir() if not _is_ours(item))
    except OSError as err:
        raise UsageError(f"--features {given} cannot be used: {err.strerror}", "name a folder") from err
    if strangers:
        raise UsageError(f"--features {given} holds other files: {few_of(strangers)}", "name an empty folder")
    with _locked(place):
        yield place


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Locks a folder of vectors: another run would read them half written. Raises UsageError where one has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise UsageError(
                f"--features {place} is in use by another run of probe", "wait for it, or name another folder"
            ) from err
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def _is_ours(path: Path) -> bool:
    from headscope.probing.store import is_our_file

    return path.is_file() and is_our_file(path.name)


def _clear(folder: Path) -> None:
    """Removes the vectors of an earlier run, what they were made of first."""
    from headscope.probing.store import MANIFEST

    (folder / MANIFEST).unlink(missing_ok=True)
    for item in [item for item in folder.iterdir() if _is_ours(item)]:
        item.unlink()


def _new_names(report: Report) -> tuple[str, ...]:
    missing = find_missing(report)
    return (*missing.head, *missing.elsewhere)


def _head_input(report: Report, classifier: str, features: Features) -> HeadInput | None:
    """What the head reads; None where the pass did not see it."""
    from headscope.probing.candidates import stages_before

    if report.head is None or (Vector.HEAD, None) not in features.parts:
        return None
    passed = stages_before(report.head, classifier)
    new = tuple(name for name in find_missing(report).head if name in passed)
    return HeadInput(report.model.class_name, report.head.pooling.kind.value, classifier, new)


def _new_pooler(report: Report) -> tuple[str, ...]:
    """The weights of the base model's pooler that the checkpoint doesn't give."""
    new = (*report.weights.new, *(item.parameter for item in report.weights.mismatched))
    return tuple(name for name in new if "pooler" in name.split("."))


def _note_on_base(report: Report) -> tuple[str, ...]:
    """A warning where the hidden states themselves come from weights that no checkpoint gave."""
    missing = find_missing(report).elsewhere
    if not missing:
        return ()
    lost = f"{counted(len(missing), 'weight')} of the base model: {few_of(missing)}"
    return (f"the checkpoint lacks {lost}; every score depends on random numbers",)


_CONSTANT = {
    Problem.SINGLE_LABEL: BaselineKind.MAJORITY,
    Problem.MULTI_LABEL: BaselineKind.EVERY_LABEL,
    Problem.REGRESSION: BaselineKind.MEAN,
}


def _rivals(  # noqa: PLR0917  a step of `_probe`, all of whose names it uses
    texts: Rows, trial: Trial, report: Report, features: Features, outputs: tuple[int, ...] | Unavailable, input: Input
) -> tuple[dict[BaselineKind, Rated], tuple[Unavailable, ...]]:
    """The baselines with their scores, and those that are not."""
    from headscope.probing.comparison import rate
    from headscope.probing.scores import predict_constant, predict_from_words
    from headscope.probing.start import is_finite, predictions_of

    found, gaps = {_CONSTANT[texts.problem]: predict_constant(trial)}, []
    words = predict_from_words([" ".join(text) for text in texts.texts], trial) if input is Input.TEXT else None
    if input is not Input.TEXT:
        gaps.append(Unavailable(BaselineKind.TFIDF.value, f"the rows are {input.value} files, not texts"))
    elif words is None:
        gaps.append(Unavailable(BaselineKind.TFIDF.value, "the texts hold no words of two letters or more"))
    if words is not None:
        found[BaselineKind.TFIDF] = words.values
    if _new_names(report):
        reason = "the checkpoint's head is not trained: weights that its scores depend on are newly initialized"
        gaps.append(Unavailable(BaselineKind.CHECKPOINT.value, reason))
    elif isinstance(outputs, Unavailable):
        gaps.append(outputs)
    elif not is_finite(features.scores):
        gaps.append(Unavailable(BaselineKind.CHECKPOINT.value, "the checkpoint's head gave NaN or infinite scores"))
    else:
        found[BaselineKind.CHECKPOINT] = predictions_of(texts, features.scores, outputs)
    return dict(zip(found, rate(list(found.values()), trial), strict=True)), tuple(gaps)


def _baseline(kind: BaselineKind, rated: Rated) -> Baseline:
    main = rated.main
    return Baseline(kind, main.metric, main.mean, main.low, main.high, rated.scores[1:])


def _start(
    texts: Rows,
    trial: Trial,
    features: Features,
    outputs: tuple[int, ...] | Unavailable,
    *,
    is_new: bool,
) -> StartingLoss | None:
    """The loss that training starts with; a new head has an output for each class, in any order."""
    from headscope.probing.start import starting_loss

    if is_new and features.scores.shape[1] == (len(texts.classes) or 1):
        outputs = tuple(range(len(texts.classes) or 1))
    if isinstance(outputs, Unavailable):
        return None
    return starting_loss(texts, trial, features.scores, outputs, new_head=is_new)


def _probe_first(  # noqa: PLR0917  a step of `_probe`, all of whose names it uses
    scored: Scored,
    rivals: dict[BaselineKind, Rated],
    trial: Trial,
    start: StartingLoss | None,
    head: HeadInput | None,
    input: Input,
    features: Features,
    *,
    is_new: bool,
) -> ProbeFirst:
    from headscope.probing.comparison import compare_one
    from headscope.probing.start import advise_probe_first, is_finite

    place = scored.place(Vector.HEAD.value)
    kinds = (_CONSTANT[trial.problem], BaselineKind.TFIDF)
    knows, words = (
        None if place is None or kind not in rivals else compare_one(scored, place, kind.value, rivals[kind], trial)
        for kind in kinds
    )
    return advise_probe_first(
        start,
        new_head=is_new,
        knows=knows,
        words=words,
        random_input=bool(head is not None and head.new),
        noun=input.noun,
        is_finite=is_finite(features.scores),
    )
