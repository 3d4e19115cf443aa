"""Facts of a report as lines, each with a word at the margin, as `inspect --details` shows them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from rich.text import Text

from headscope.core.facts import (
    Gap,
    Head,
    HeadHealth,
    HeadParameter,
    HealthBasis,
    HealthVerdict,
    ModelFacts,
    PaddingEffect,
    PickledHead,
    Quantization,
    Report,
    SentenceModule,
    SentencePipeline,
    UnusedGroup,
    WeightsFormat,
)
from headscope.core.facts.counting import counted, few_of, list_of
from headscope.core.facts.heads.tasks import TEXT_TASKS, WITHOUT_CLASSES
from headscope.core.facts.stored.checkpoint import told_gaps
from headscope.core.words.console import QUIET, STRONG, TONE, Tone
from headscope.core.words.fold import fold_keys
from headscope.core.words.plain_words import class_matrix, is_loss_chosen_by_labels
from headscope.core.words.safe import label, safe
from headscope.core.words.words import (
    HEALTH,
    POOLING,
    SENTENCE_POOLING,
    SOURCE,
    brief_rule,
    bytes_of,
    gives_embedding,
    loss_of,
    place_words,
    result_of,
    share_of,
    share_of_one,
    size_of,
)
from headscope.shared.report.findings import repaired_sentence
from headscope.shared.report.head.stages import fate_of

_LABELS = 12
_BRIEF, _PLACEHOLDERS = 64, 3
_NO_PROBLEM = "problem_type not set, so the labels choose the loss (here: integers)"

FactLines = Iterator[tuple[str, Text]]


def model_facts(report: Report) -> FactLines:
    """Names the class, the task, the dtype, and the wrappers of a model in memory."""
    model = report.model
    # The innermost first: `, inside OptimizedModule, inside PeftModel`.
    wrappers = "".join(f", inside {name}" for name in reversed(model.wrappers))
    yield "model", label(f"{model.class_name}, {model.task.value}, {model.dtype}{wrappers}")


def quantized_facts(report: Report) -> FactLines:
    """Says how the checkpoint is quantized."""
    if report.model.quantization is not None:
        yield "quantized", _quantization_words(report.model.quantization, report.head)


def _quantization_words(facts: Quantization, head: Head | None) -> Text:
    """Names the method of quantization, and says if it quantized the head, or which part of it."""
    matrices = head.matrices if head is not None else ()
    part = [item.name.rpartition(".")[0] for item in matrices if item.quantized is not None]
    too = f"the head's {few_of(part)} too" if len(part) < len(matrices) else "the head is quantized too"
    words = {True: too, False: "the head is not", None: "the head: not determined"}
    bits = f", {facts.bits} bit" if facts.bits else ""
    text = label(f"{facts.method}{bits}; ")
    text.append(words[facts.head_quantized], "" if facts.head_quantized is False else "yellow")
    if facts.skipped:
        text.append(f"; left alone: {', '.join(map(safe, facts.skipped))}")
    return text


def pooling_facts(report: Report) -> FactLines:
    """Says which positions are read, by which rule."""
    if report.head is None:
        return
    pooling = report.head.pooling
    yield "pooling", label(f"{POOLING[pooling.kind]}: {pooling.rule}" if pooling.rule else POOLING[pooling.kind])


def brief_pooling_facts(report: Report) -> FactLines:
    """Says which positions are read, without the token there: the row of tokens shows it."""
    if report.head is not None:
        yield "pooling", label(brief_rule(report.head.pooling))


def evidence_facts(report: Report) -> FactLines:
    """Lists the operations that pool, with their source lines."""
    if report.head is not None and report.head.pooling.evidence:
        yield "seen", label(", ".join(map(place_words, report.head.pooling.evidence)), QUIET)


def verified_facts(report: Report) -> FactLines:
    """Says if gradients confirm the pooling, and what padding does to the scores, if that was verified."""
    if report.head is None:
        return
    verification = report.head.verification
    if verification is not None:
        tone = {True: Tone.GOOD, False: Tone.ERROR, None: Tone.WARNING}[verification.agrees]
        yield "verified", label(verification.told, TONE[tone])
        if verification.padding:
            yield "padding", _padding_words(verification.padding)


def formula_facts(report: Report) -> FactLines:
    """Shows the formula if one was proven, and how token logits become scores."""
    if report.head is None:
        return
    if report.head.formula:
        yield "formula", label(f"{result_of(report.model)} = {report.head.expression}")
    rows = report.head.token_rows
    if rows is not None:
        named = " and ".join(f"{row.token or 'token'} (id {row.id})" for row in rows.rows)
        scored = report.head.expression or "logits"
        line = f"softmax({scored}), the probabilities of {named}" if len(rows.rows) > 1 else f"{scored}, of {named}"
        made = f"{counted(len(rows.rows), 'row')} of {rows.parameter}, which has {rows.vocabulary:,}"
        yield "scores", label(f"{line}: {made}")


def _padding_words(effects: Sequence[PaddingEffect]) -> Text:
    """Says for each side what padding does to the scores; measured on a small random model."""
    words = {True: "changes the scores", False: "leaves the scores alone", None: "not determined"}
    sentence = []
    for effect in effects:
        how_much = f"by {effect.difference:.1%}" if effect.changes and effect.difference is not None else effect.reason
        more = f" ({how_much})" if how_much else ""
        sentence.append(f"{effect.side}: {words[effect.changes]}{more}")
    worst = any(effect.changes is not False for effect in effects)
    return label("; ".join(sentence), TONE[Tone.WARNING if worst else Tone.GOOD])


def label_facts(report: Report) -> FactLines:
    """Lists the names of the classes."""
    return _label_facts(report, _LABELS)


def brief_label_facts(report: Report) -> FactLines:
    """Lists the names of the classes, as many as fit into two lines, and only a few placeholders."""
    if report.model.labels_are_placeholders:
        return _label_facts(report, _PLACEHOLDERS)
    sizes = accumulate(len(name) for name in report.model.labels)
    return _label_facts(report, max(1, min(_LABELS, sum(size <= _BRIEF for size in sizes))))


def _label_facts(report: Report, most: int) -> FactLines:
    model = report.model
    if model.task in WITHOUT_CLASSES:
        yield "labels", Text(WITHOUT_CLASSES[model.task])
        return
    named, count = list_of(model.labels, most, "more (--json lists all)"), f"{model.num_labels:,}"
    if model.labels_are_placeholders:
        named, count = list_of(model.labels, most), f"{counted(model.num_labels, 'placeholder')}, no names given"
    words = f"{count}: {named}"
    if not model.labels and model.num_labels:
        words = f"{counted(model.num_labels, 'class', 'classes')}; the model has no id2label to name them"
    elif not model.labels:
        is_embedding = gives_embedding(model)
        words = "none: the model gives an embedding, not class scores" if is_embedding else "not determined"
    yield "labels", label(words)


def loss_facts(report: Report) -> FactLines:
    """Names the loss, and what decides it."""
    problem = "" if report.model.task in WITHOUT_CLASSES else _problem_words(report.model)
    if problem:
        yield "problem", label(problem)
    if not gives_embedding(report.model):
        yield "loss", label(loss_of(report.model))


def source_facts(report: Report) -> FactLines:
    """Says that the trace is one that headscope ships, if nothing was traced for this report."""
    if report.is_shipped:
        version = report.environment.transformers
        same = f"the functions that ran are the same in Transformers {version}; --no-cache traces again"
        none = "Transformers is not installed here"
        yield "traced", label(f"when headscope was made; {none if version == 'not installed' else same}")


def _problem_words(model: ModelFacts) -> str:
    """Gives the problem type as far as it matters to the loss; "" if none is set and the forward reads none."""
    if model.problem_type and model.reads_problem_type is False:
        return f"{model.problem_type} is set, but the forward does not read it"
    if model.problem_type_implied:
        return f"problem_type not set; num_labels=1 means {model.problem_type}"
    return _NO_PROBLEM if is_loss_chosen_by_labels(model) else model.problem_type or ""


def parameter_facts(report: Report) -> FactLines:
    """Counts the parameters, and says in which order the axes of the last matrix are stored."""
    counts = report.model.parameters
    body = Text(f"{counts.total:,} in total: base model {counts.base:,}, head {counts.head:,}")
    body.append(f" ({share_of(counts.head, counts.total)})")
    if counts.other_heads:
        body.append(f", other heads {counts.other_heads:,}")
    if report.head is not None and counts.live_head != counts.head:
        body.append(f"; {counts.live_head:,} of the head reach the logits")
    yield "parameters", body
    matrix = class_matrix(report.head, report.model) if report.head else None
    if matrix is not None:
        yield "matrix", label(_matrix_sentence(matrix, report))


def _matrix_sentence(matrix: HeadParameter, report: Report) -> str:
    classes, width = matrix.shape
    inner = "hidden" if report.head and report.head.hidden_shape[-1:] == (width,) else "features"
    outer = "scores" if report.model.task in WITHOUT_CLASSES else "classes"
    sentence = f"{matrix.name} is {inner} x {outer}, {width:,} x {classes:,}, stored as {size_of(matrix.shape)}"
    if matrix.quantized is not None:
        sentence = f"{matrix.name} is {inner} x {outer}, {width:,} x {classes:,}, packed as {matrix.quantized}"
    return f"{sentence}; not vocabulary x {outer}" if report.model.task in TEXT_TASKS else sentence


def health_facts(report: Report) -> FactLines:
    """Says if the classifier was trained: the verdict, then its reasons, a line each."""
    health = report.health
    if health is None:
        return
    body = label(HEALTH[health.verdict], TONE[_HEALTH_TONES[health.verdict]])
    if health.confidence is not None and health.basis is HealthBasis.STATISTICS:
        body.append(f" ({share_of_one(health.confidence)} confidence)", "default")
    is_one_line = health.verdict is HealthVerdict.NOT_DETERMINED or health.basis is HealthBasis.STATUS
    first = f": {health.reasons[0]}" if is_one_line else ""
    body.append(safe(first or (f": {health.classifier}" if health.classifier else "")), "default")
    yield "health", body
    for reason in health.reasons[1:] if first else health.reasons:
        yield "", label(f"- {reason}")
    geometry = _geometry_words(health)
    if geometry:
        yield "", label(f"- {geometry}", QUIET)


_HEALTH_TONES = {
    HealthVerdict.FRESH: Tone.WARNING,
    HealthVerdict.BRIEFLY_TRAINED: Tone.GOOD,
    HealthVerdict.TRAINED: Tone.GOOD,
    HealthVerdict.COLLAPSED: Tone.ERROR,
    HealthVerdict.NOT_DETERMINED: Tone.WARNING,
}


def _geometry_words(health: HeadHealth) -> str:
    """Compares the rows of the classifier with those of a fresh draw; says if training may move the mean row too.

    A softmax over the rows ignores what is added to all of them, so only other losses move their mean.
    """
    weight = health.weight
    if weight is None or weight.mean_row is None or weight.mean_row_expected is None or weight.cosine is None:
        return ""
    numbers = (
        f"mean row {weight.mean_row:.3f} of a row (fresh {weight.mean_row_expected:.3f}), mean cosine of rows "
        f"{weight.cosine:+.3f} (fresh 0, least {weight.cosine_least:+.3f})"
    )
    held = {
        True: "",
        False: "; the loss is not a softmax over the rows, so training may move the mean row too",
        None: "; the loss is not known, so training may move the mean row too",
    }
    return numbers + held[health.mean_row_applies]


def unused_facts(report: Report) -> FactLines:
    """Lists the tensors of the checkpoint that nothing reads."""
    diff = report.weights
    if not diff.unused and report.checkpoint.tensors:
        yield "unused", Text("none")
    for group in diff.unused_groups or ((UnusedGroup(diff.unused, ""),) if diff.unused else ()):
        body = label(f"{counted(len(group.keys), 'checkpoint tensor')}")
        body.append(f" of the {safe(group.description)}" if group.description else " without a place", STRONG)
        body.append(f": {', '.join(map(safe, fold_keys(group.keys)))}")
        yield "unused", body


def beside_facts(report: Report) -> FactLines:
    """Lists the modules beside the head path."""
    for module in report.head.unused_modules if report.head else ():
        yield "not used", label(f"{module.path} ({module.module_class}): {fate_of(module)}")


def checkpoint_lines(report: Report) -> FactLines:
    """Names the checkpoint, its source, and how much of it was read."""
    facts = report.checkpoint
    words = [facts.reference, SOURCE[facts.kind]]
    if facts.revision:
        words.append(f"revision {facts.revision}")
    if facts.commit:
        words.append(f"commit {facts.commit[:12]}")
    tensors = counted(facts.tensors, "tensor")
    if facts.format is not WeightsFormat.NONE:
        words += [facts.format.value, tensors]
    else:
        words.append(tensors if facts.tensors else "no weight files")
    if facts.bytes_total:
        asked = f" in {counted(facts.requests, 'request')}" if facts.requests else ""
        words.append(f"{bytes_of(facts.bytes_read)} read of {bytes_of(facts.bytes_total)}{asked}")
    yield "checkpoint", label(", ".join(words))


def pipeline_facts(report: Report) -> FactLines:
    """Shows what sentence-transformers does after the base model, which the class that is shown doesn't do."""
    pipeline = report.checkpoint.sentence_transformers
    if pipeline is None:
        return
    chain = " -> ".join(map(_module_words, pipeline.parts)) or ", ".join(pipeline.modules)
    shown = chain or (f"not determined: {pipeline.reason}" if pipeline.reason else "")
    body = label(f"sentence-transformers{_library_words(pipeline)}{f': {shown}' if shown else ''}; ")
    if pipeline.pooling:
        modes = " and ".join(SENTENCE_POOLING.get(mode, safe(mode)) for mode in pipeline.pooling)
        body.append(f"it pools by {modes}. ", STRONG)
    elif pipeline.modules and pipeline.reason:
        body.append(f"its pooling is not determined: {safe(pipeline.reason)}. ", "yellow")
    body.append(_classifier_of(pipeline, report))
    yield "pipeline", body
    for part in pipeline.parts:
        if part.fault and part.name not in {"Pooling", "LogitScore"}:
            yield "error", label(f"loading {part.folder} ({part.name}) raises an error: {part.fault}", "bold red")


def _library_words(pipeline: SentencePipeline) -> str:
    """Names the class that saved the checkpoint, its activation and its limit of tokens: ` (CrossEncoder, ...)`."""
    words = [pipeline.library_class] if pipeline.library_class else []
    if pipeline.library_class == "CrossEncoder":
        words.append(f"activation {pipeline.activation or 'of the library: Sigmoid for one score, otherwise none'}")
    if pipeline.max_length is not None:
        words.append(f"at most {pipeline.max_length:,} tokens")
    return f" ({', '.join(words)})" if words else ""


def _module_words(part: SentenceModule) -> str:
    """Writes a module with its settings, sizes and weights: `Dense (Tanh, 768 to 256, linear.weight 256x768)`."""
    words = [part.detail] if part.detail else []
    if part.weights and part.input_size is not None:
        words.append(f"{part.input_size:,} to {part.output_size:,}")
    words += [f"{item.name} {size_of(item.shape)}" for item in part.weights]
    words += ["" if part.fault else "loaded"] if part.weights else []
    return f"{part.name} ({', '.join(word for word in words if word)})" if words else part.name


def _classifier_of(pipeline: SentencePipeline, report: Report) -> str:
    name = report.model.class_name
    if report.shows_chain:
        what = counted(pipeline.score_count, "score") if pipeline.score_count else "an embedding"
        return f"This chain is the head that is shown; it gives {what}."
    scored = next((part for part in reversed(pipeline.parts) if part.scores), None)
    if scored is not None:
        return f"Its scores are those of {safe(scored.folder)}; {name}, shown here, does not use it."
    if pipeline.library_class == "SparseEncoder":
        return f"It gives a sparse vector and no classes; {name}, shown here, pools in its own way."
    if pipeline.classifier:
        return f"Its classifier is {safe(pipeline.classifier)}{_of_pickle(pipeline.head)}; {name} does not use it."
    if name in report.checkpoint.architectures:
        return f"{name} is the checkpoint's own class."
    return f"It has no classifier; {name}, shown here, pools in its own way."


def score_head_facts(report: Report) -> FactLines:
    """Lists heads of other libraries, even if the class that is shown does not load them."""
    unused = set(report.weights.unused)
    for head in report.checkpoint.score_heads:
        line = (
            f"{head.name}: {counted(len(head.tensors), 'tensor')}, {counted(head.scores, 'score')} from {head.weight}"
        )
        if unused.isdisjoint(head.tensors):
            line = f"{line}; it is the head that is shown. {_READ_OF.get(head.name, _READ_OF_VALUES)}"
        yield "other head", label(line, STRONG)


_READ_OF_VALUES = "TRL, LlamaFactory and OpenRLHF take its score at the last token that is not padding for the reward."
_READ_OF = {"lm_head": "Its rows are those of the answers."}


def _of_pickle(head: PickledHead | None) -> str:
    """Describes a pickled classifier: its class, its matrix as features x classes, its formula."""
    if head is None or head.reason or len(head.shape) != 2:
        return f", a pickle ({safe(head.reason)})" if head is not None and head.reason else ", a pickle"
    rows, width = head.shape
    count = len(head.labels) or (2 if rows == 1 else rows)  # scikit-learn stores one row for two classes
    weights = "linear(e)" if head.library == "SetFit" else "e @ coef_.T + intercept_"
    named = f": {list_of(tuple(map(safe, head.labels)), _LABELS)}" if head.labels else ""
    matrix = f"features x scores, {width:,} x {rows:,}, {head.dtype}, logits = {weights}"
    return f", a {safe(head.class_name)} (read, not executed) of {counted(count, 'class', 'classes')}{named} ({matrix})"


def adapter_lines(report: Report) -> FactLines:
    """Describes the adapter and what it gives; what it leaves out is a finding."""
    facts = report.adapter
    if facts is None:
        return
    task = f" for {facts.task_type}" if facts.task_type else ""
    saved = f"saves {', '.join(fold_keys(facts.saved))}" if facts.saved else "saves no layer in full"
    body = f"{facts.method}{task} on {facts.base}, {counted(facts.tensors, 'tensor')}; {saved}"
    body += f"; changes {', '.join(facts.adapted)} of the head" if facts.adapted else ""
    body += f"; {counted(facts.virtual_tokens, 'virtual token')} before each text" if facts.virtual_tokens else ""
    yield "adapter", label(body)


def repair_facts(report: Report) -> FactLines:
    """Says what would be loaded after the repair; separate from what the loader does."""
    if report.repaired is not None:
        yield "repaired", repaired_sentence(report.repaired)


def notice_facts(report: Report) -> FactLines:
    """Lists what was used instead of the checkpoint, and what could not be determined."""
    return remarks_of(report.checkpoint.notices, report.not_determined)


def remarks_of(notices: Iterable[str], gaps: Iterable[Gap]) -> FactLines:
    """Lists sentences that a reader must see and what could not be determined, with the same words on all screens."""
    for notice in notices:
        yield "notice", label(notice, "yellow")
    for gap in told_gaps(gaps):
        yield "unknown", label(gap, "yellow")


def note_facts(report: Report) -> FactLines:
    """Lists the notes of the report."""
    for note in report.notes:
        yield "note", label(note)
