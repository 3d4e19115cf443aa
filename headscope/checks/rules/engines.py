"""Rules on the inference engine that will serve the checkpoint: `check --engine`."""

from headscope.checks.facts import Subject
from headscope.checks.rules.rule import Findings, NotKnown, Rule, rule, severity_at
from headscope.core.facts import Severity
from headscope.shared.serving.engine_facts import EngineHead


def _engine_of(subject: Subject) -> EngineHead:
    """Gives how the engine runs the head. Raises NotKnown where the facts on the engine don't say."""
    assert subject.engine is not None, "a rule that needs an engine runs with one"
    if subject.engine.runs is None:
        raise NotKnown(subject.engine.reason)
    return subject.engine


def _error_at_inference(subject: Subject) -> Severity:
    return severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR)


def _warning_at_inference(subject: Subject) -> Severity:
    return severity_at(subject, training=Severity.NOTE, inference=Severity.WARNING)


@rule("HS901", "engine-other-head", "The engine runs a different head", needs=("engine",), finds="W|E")
def engine_other_head(this: Rule, subject: Subject) -> Findings:
    """Another position, activation or layer than in Transformers, without an error."""
    engine = _engine_of(subject)
    # An engine that refuses the checkpoint has no head to compare: HS903 reports it.
    if engine.runs and engine.same_head is None and not engine.is_constant:
        raise NotKnown(engine.reason or f"the source of {engine.title} doesn't tell")
    if engine.runs and engine.is_fault:
        computed = f"computes {engine.formula}" if engine.formula else "gives other scores"
        yield this.find(
            _error_at_inference(subject),
            f"{engine.title} {engine.version} {computed}. {engine.reason}",
            f"Serve it with an engine that runs this head, which `headscope engines` lists ({engine.source}).",
        )


@rule(
    "HS902",
    "engine-other-function",
    "The engine applies another function to the scores",
    needs=("engine",),
    finds="N|W",
)
def engine_other_function(this: Rule, subject: Subject) -> Findings:
    """Softmax where the loss takes sigmoid, raw logits where users expect probabilities."""
    engine = _engine_of(subject)
    if engine.runs and engine.same_activation is None:
        raise NotKnown(f"which function {engine.title} applies to these scores is not known")
    if engine.same_activation is False and not engine.is_constant:
        names = (engine.activation or "", engine.own_activation)
        given, expected = ({"none": "no function"}.get(name, name) for name in names)
        yield this.find(
            _warning_at_inference(subject),
            f"{engine.title} {engine.version} applies {given} to the scores by default; the checkpoint's own library "
            f"applies {expected}.",
            "Request logits, as `headscope engines MODEL --details` shows, and apply the function yourself.",
        )


@rule("HS903", "engine-no-scores", "The engine gives no scores", needs=("engine",), finds="W|E")
def engine_no_scores(this: Rule, subject: Subject) -> Findings:
    """An engine that refuses the checkpoint, or has no head for its class."""
    engine = _engine_of(subject)
    if engine.runs is False:
        yield this.find(
            _error_at_inference(subject),
            f"{engine.title} {engine.version} gives no scores for {subject.report.model.class_name}. {engine.reason}",
            f"Serve it with another engine, which `headscope engines` lists ({engine.source}).",
        )


@rule("HS904", "engine-reads-padding", "The engine reads the padding token", needs=("engine",), finds="N|W")
def engine_reads_padding(this: Rule, subject: Subject) -> Findings:
    """An engine that pools the last token of a text even if it is the padding token, which Transformers skips."""
    engine = _engine_of(subject)
    if engine.runs and engine.reads_padding:
        yield this.find(
            _warning_at_inference(subject),
            f"{engine.title} {engine.version} reads the {engine.positions}: a text that ends in that token gets other "
            "scores than in Transformers.",
            "Send texts that don't end in the padding token, such as an added eos token that is the padding token too.",
        )


@rule("HS905", "engine-precision", "The engine computes in half precision by default", needs=("engine",), finds="N|W")
def engine_precision(this: Rule, subject: Subject) -> Findings:
    """A float32 checkpoint that the engine converts to half precision unless its settings say otherwise."""
    engine = _engine_of(subject)
    if engine.runs and engine.float32_becomes and subject.report.model.dtype == "float32":
        yield this.find(
            _warning_at_inference(subject),
            f"{engine.title} {engine.version} computes a float32 checkpoint in {engine.float32_becomes} by default.",
            "Set its dtype to float32, or compare scores near your thresholds first.",
        )
