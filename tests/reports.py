"""Reports written by hand after the real checkpoints: what the screens are tested on."""

from dataclasses import replace
from math import prod
from typing import Any

from headscope.core.facts.stored.unplaced import UnplacedReason
from headscope.facts import (
    CheckpointFacts,
    CheckpointKind,
    Environment,
    Evidence,
    Head,
    HeadParameter,
    HiddenSource,
    Mismatch,
    ModelFacts,
    ParameterCounts,
    ParameterOrigin,
    ParameterStatus,
    Pooling,
    PoolingKind,
    PoolingPart,
    Positions,
    Rename,
    Report,
    Shape,
    Stage,
    Task,
    TensorHeader,
    UnusedGroup,
    UnusedModule,
    WeightDiff,
    WeightsFormat,
    Where,
)

ENVIRONMENT = Environment("3.11.9", "2.13.0", "5.23.0", "2.4.0", "0.8.0")
LOADED, NEW, MISMATCHED = ParameterStatus.LOADED, ParameterStatus.NEW, ParameterStatus.MISMATCHED
TOKENS: Shape = ("batch", "sequence", 768)
VECTOR: Shape = ("batch", 768)
PLACEHOLDERS = ("LABEL_0", "LABEL_1", "LABEL_2")


def one_part(kind: PoolingKind, positions: Positions) -> tuple[PoolingPart, ...]:
    """The typed side of a pooling that reads one thing of the last hidden states."""
    return (PoolingPart(kind, positions, "the rule", (HiddenSource(),)),)


def head_parameter(
    name: str, shape: tuple[int, ...], status: ParameterStatus, stored: tuple[int, ...] | None = None
) -> HeadParameter:
    """A live float32 parameter of a head."""
    keys = () if status is NEW else (name,)
    return HeadParameter(name, shape, "float32", prod(shape), status, True, keys, stored)


def origin(
    name: str, shape: tuple[int, ...], status: ParameterStatus, keys: tuple[str, ...], base: bool
) -> ParameterOrigin:
    """A float32 parameter of a model."""
    return ParameterOrigin(name, shape, "float32", prod(shape), status, keys, base)


def stage(  # noqa: PLR0917 - a stage has that many fields
    index: int,
    operation: str,
    module: str,
    module_class: str,
    source: tuple[str, int],
    shapes: tuple[Shape, Shape],
    parameters: tuple[str, ...] = (),
    detail: str = "",
) -> Stage:
    """A stage that reads the one before it; functional unless its class is a leaf of PyTorch."""
    functional = module_class not in {"Linear", "Dropout", "Tanh"}
    read, made = shapes
    return Stage(
        index, operation, module, module_class, functional, (read,), made, parameters, *source, detail, (index - 1,)
    )


def model(class_name: str, counts: ParameterCounts, labels: tuple[str, ...] = PLACEHOLDERS) -> ModelFacts:
    """A single-label sequence classifier in float32."""
    return ModelFacts(
        padding_side="right",
        reads_problem_type=True,
        class_name=class_name,
        task=Task.SEQUENCE_CLASSIFICATION,
        num_labels=len(labels),
        labels=labels,
        labels_are_placeholders=labels == PLACEHOLDERS,
        problem_type=None,
        loss="CrossEntropyLoss",
        activation="softmax",
        parameters=counts,
        dtype="float32",
    )


def checkpoint(reference: str, architecture: str, model_type: str, tensors: int, size: int) -> CheckpointFacts:
    """A bundled snapshot that stood in for the Hub."""
    return CheckpointFacts(
        reference=reference,
        kind=CheckpointKind.SNAPSHOT,
        revision=None,
        commit=None,
        format=WeightsFormat.SAFETENSORS,
        files=("model.safetensors",),
        tensors=tensors,
        bytes_read=26_431,
        bytes_total=size,
        architectures=(architecture,),
        model_type=model_type,
        notices=("The Hub was not asked: the bundled snapshot (reconstructed) was used.",),
    )


def report(facts: CheckpointFacts, about: ModelFacts, weights: WeightDiff, head: Head) -> Report:
    """An `inspect` report of this version."""
    return Report("0.1.0", "inspect", ENVIRONMENT, facts, about, weights, head)


def as_diff(report: Report) -> Report:
    """What `diff-weights` says of the same checkpoint."""
    return replace(report, command="diff-weights", head=None)


def a_head(report: Report) -> Head:
    """The head of a report that has one."""
    assert report.head is not None
    return report.head


def with_head(report: Report, **changes: Any) -> Report:
    """The report with other facts of its head."""
    return replace(report, head=replace(a_head(report), **changes))


def with_model(report: Report, **changes: Any) -> Report:
    """The report with other facts of its model."""
    return replace(report, model=replace(report.model, **changes))


def encoder_layers(prefix: str, key_prefix: str) -> tuple[ParameterOrigin, ...]:
    """Twelve layers of a few parameters each; the norms are stored under TensorFlow's names."""
    return tuple(
        origin(f"{prefix}.{layer}.{name}", shape, LOADED, (f"{key_prefix}.{layer}.{key}",), True)
        for layer in range(12)
        for name, key, shape in (
            ("attention.self.query.weight", "attention.self.query.weight", (768, 768)),
            ("attention.self.query.bias", "attention.self.query.bias", (768,)),
            ("attention.output.LayerNorm.weight", "attention.output.LayerNorm.gamma", (768,)),
            ("attention.output.LayerNorm.bias", "attention.output.LayerNorm.beta", (768,)),
        )
    )


def renames_of(origins: tuple[ParameterOrigin, ...]) -> tuple[Rename, ...]:
    """The origins whose checkpoint keys have another name."""
    named = (item for item in origins if item.checkpoint_keys and item.checkpoint_keys != (item.name,))
    return tuple(Rename(item.name, item.checkpoint_keys) for item in named)


def weights_of(
    loaded: int, base: tuple[ParameterOrigin, ...], parameters: tuple[HeadParameter, ...], *groups: UnusedGroup,
    unused: tuple[TensorHeader, ...] = (),
) -> WeightDiff:  # fmt: skip
    """What the checkpoint gives of a base model and of a head."""
    found = sorted(parameters, key=lambda item: item.name)
    head = (origin(p.name, p.shape, p.status, p.checkpoint_keys, "pooler" in p.name) for p in parameters)
    return WeightDiff(
        loaded=loaded,
        new=tuple(item.name for item in found if item.status is NEW),
        mismatched=tuple(Mismatch(p.name, p.checkpoint_shape, p.shape) for p in found if p.checkpoint_shape),
        unused=tuple(key for group in groups for key in group.keys),
        tied=(),
        renamed=renames_of(base),
        unused_groups=groups,
        parameters=(*base, *head),
        unused_tensors=unused,
    )


def stages_of(
    file: str, parameters: tuple[HeadParameter, ...], *rows: tuple[str, str, str, int, str]
) -> tuple[Stage, ...]:
    """The way from a token to three scores: operation, module, its class, the line in the file, and details."""
    return tuple(
        stage(
            at, operation, module, module_class, (file, line),
            (VECTOR if at else TOKENS, VECTOR if at + 1 < len(rows) else ("batch", 3)),
            tuple(p.name for p in parameters if module_class == "Linear" and p.name.startswith(f"{module}.")), detail,
        )
        for at, (operation, module, module_class, line, detail) in enumerate(rows)
    )  # fmt: skip


def first_token(token: str, first: Stage) -> Pooling:
    """The pooling of a head whose first stage takes the token at position 0."""
    return Pooling(
        PoolingKind.FIRST_TOKEN,
        (token,),
        f"position 0 of every sequence, the {token} token, padding or not",
        (Evidence(first.operation, first.module, first.file, first.line),),
        one_part(PoolingKind.FIRST_TOKEN, Positions(Where.INDEX, 0, token=token)),
    )


ROBERTA = "transformers/models/roberta/modeling_roberta.py"
BERT = "transformers/models/bert/modeling_bert.py"
DISTILBERT = "transformers/models/distilbert/modeling_distilbert.py"
GPT2 = "transformers/models/gpt2/modeling_gpt2.py"


def roberta() -> Report:
    """roberta-base with three labels: the whole head is new."""
    parameters = (
        head_parameter("classifier.dense.weight", (768, 768), NEW),
        head_parameter("classifier.dense.bias", (768,), NEW),
        head_parameter("classifier.out_proj.weight", (3, 768), NEW),
        head_parameter("classifier.out_proj.bias", (3,), NEW),
    )
    owner = "RobertaClassificationHead"
    stages = stages_of(
        ROBERTA,
        parameters,
        ("select", "classifier", owner, 1155, "[:, 0, :]"),
        ("dropout", "classifier.dropout", "Dropout", 1156, "p=0.1"),
        ("linear", "classifier.dense", "Linear", 1157, ""),
        ("tanh", "classifier", owner, 1158, ""),
        ("dropout", "classifier.dropout", "Dropout", 1159, "p=0.1"),
        ("linear", "classifier.out_proj", "Linear", 1160, ""),
    )
    shapes = {
        "lm_head.bias": (50265,), "lm_head.dense.bias": (768,), "lm_head.dense.weight": (768, 768),
        "lm_head.layer_norm.bias": (768,), "lm_head.layer_norm.weight": (768,),
    }  # fmt: skip
    embedding = "roberta.embeddings.word_embeddings.weight"
    base = (
        origin(embedding, (50265, 768), LOADED, (embedding,), True),
        *encoder_layers("roberta.encoder.layer", "roberta.encoder.layer"),
    )
    weights = weights_of(
        197,
        base,
        parameters,
        UnusedGroup(tuple(shapes), "masked-language-model head", ("RobertaForMaskedLM",)),
        unused=tuple(TensorHeader(key, "float32", shape) for key, shape in shapes.items()),
    )
    head = Head(
        ("classifier",), first_token("<s>", stages[0]), stages, parameters, "logits = out_proj(tanh(dense(h[<s>])))",
        TOKENS, features="tanh(dense(h[<s>]))",
    )  # fmt: skip
    counts = ParameterCounts(124_647_939, 124_055_040, 592_899, 592_899)
    about = model("RobertaForSequenceClassification", counts)
    facts = checkpoint("roberta-base", "RobertaForMaskedLM", "roberta", 202, 498_818_054)
    return report(facts, about, weights, head)


def bert() -> Report:
    """bert-base-uncased with three labels: the pooler is loaded, the classifier is new."""
    parameters = (
        head_parameter("bert.pooler.dense.weight", (768, 768), LOADED),
        head_parameter("bert.pooler.dense.bias", (768,), LOADED),
        head_parameter("classifier.weight", (3, 768), NEW),
        head_parameter("classifier.bias", (3,), NEW),
    )
    stages = stages_of(
        BERT,
        parameters,
        ("select", "bert.pooler", "BertPooler", 460, "[:, 0]"),
        ("linear", "bert.pooler.dense", "Linear", 461, ""),
        ("tanh", "bert.pooler.activation", "Tanh", 462, ""),
        ("dropout", "dropout", "Dropout", 1140, "p=0.1"),
        ("linear", "classifier", "Linear", 1141, ""),
    )
    masked = (
        "cls.predictions.bias", "cls.predictions.decoder.weight", "cls.predictions.transform.LayerNorm.beta",
        "cls.predictions.transform.LayerNorm.gamma", "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.dense.weight",
    )  # fmt: skip
    sentence = ("cls.seq_relationship.bias", "cls.seq_relationship.weight")
    weights = weights_of(
        199,
        encoder_layers("bert.encoder.layer", "bert.encoder.layer"),
        parameters,
        UnusedGroup(masked, "masked-language-model head", ("BertForMaskedLM",)),
        UnusedGroup(sentence, "next-sentence-prediction head", ("BertForNextSentencePrediction",)),
    )
    head = Head(
        ("bert.pooler", "dropout", "classifier"), first_token("[CLS]", stages[0]), stages, parameters,
        "logits = classifier(tanh(bert.pooler.dense(h[[CLS]])))", TOKENS,
        features="tanh(bert.pooler.dense(h[[CLS]]))",
    )  # fmt: skip
    counts = ParameterCounts(109_484_547, 109_482_240, 592_899, 592_899)
    about = model("BertForSequenceClassification", counts)
    facts = replace(
        checkpoint("bert-base-uncased", "BertForMaskedLM", "bert", 207, 440_449_768),
        kind=CheckpointKind.HUB,
        commit="86b5e0934494bd15c9632b12f734a8a67f723594",
        notices=(),
    )
    return report(facts, about, weights, head)


def distilbert_mismatch() -> Report:
    """The SST-2 model asked for three labels instead of its two."""
    parameters = (
        head_parameter("pre_classifier.weight", (768, 768), LOADED),
        head_parameter("pre_classifier.bias", (768,), LOADED),
        head_parameter("classifier.weight", (3, 768), MISMATCHED, (2, 768)),
        head_parameter("classifier.bias", (3,), MISMATCHED, (2,)),
    )
    owner = "DistilBertForSequenceClassification"
    stages = stages_of(
        DISTILBERT,
        parameters,
        ("select", "", owner, 634, "[:, 0]"),
        ("linear", "pre_classifier", "Linear", 635, ""),
        ("relu", "", owner, 636, ""),
        ("dropout", "dropout", "Dropout", 637, "p=0.2"),
        ("linear", "classifier", "Linear", 638, ""),
    )
    head = Head(
        ("pre_classifier", "dropout", "classifier"), first_token("[CLS]", stages[0]), stages, parameters,
        "logits = classifier(relu(pre_classifier(h[[CLS]])))", TOKENS,
        features="relu(pre_classifier(h[[CLS]]))",
    )  # fmt: skip
    counts = ParameterCounts(66_955_779, 66_362_880, 592_899, 592_899)
    name = "distilbert-base-uncased-finetuned-sst-2-english"
    facts = checkpoint(name, owner, "distilbert", 104, 267_832_558)
    return report(facts, model(owner, counts), weights_of(102, (), parameters), head)


def gpt2() -> Report:
    """gpt2 with three labels: one score for every token, the last one that is no padding is taken."""
    parameters = (head_parameter("score.weight", (3, 768), NEW),)
    owner = "GPT2ForSequenceClassification"
    scores: Shape = ("batch", "sequence", 3)
    picked = "[range(batch), last_non_pad_token]"
    stages = (
        stage(0, "linear", "score", "Linear", (GPT2, 920), (TOKENS, scores), ("score.weight",)),
        stage(1, "index", "", owner, (GPT2, 945), (scores, ("batch", 3)), (), picked),
    )
    pooling = Pooling(
        PoolingKind.LAST_NON_PAD_TOKEN,
        ("last non-pad",),
        "the last position whose id is not pad_token_id; no pad token is set, so batches over 1 fail",
        (Evidence("index", "", GPT2, 945),),
        one_part(PoolingKind.LAST_NON_PAD_TOKEN, Positions(Where.LAST_NON_PAD)),
    )
    unused = tuple(f"h.{layer}.attn.bias" for layer in range(12))
    base = tuple(
        origin(f"transformer.h.{layer}.ln_1.weight", (768,), LOADED, (f"h.{layer}.ln_1.weight",), True)
        for layer in range(12)
    )
    weights = weights_of(
        148,
        base,
        parameters,
        UnusedGroup(unused, "buffers that Transformers computes", reason=UnplacedReason.OLDER_VERSION),
        unused=tuple(TensorHeader(key, "float32", (1, 1, 1024 if key != unused[7] else 512, 1024)) for key in unused),
    )
    head = Head(
        ("score",), pooling, stages, parameters, "logits = score(h)[last non-pad]", TOKENS,
        (UnusedModule("transformer.wpe_extra", "Embedding", False),), features="h[last non-pad]",
    )  # fmt: skip
    counts = ParameterCounts(124_442_112, 124_439_808, 2304, 2304)
    about = model(owner, counts)
    return report(checkpoint("gpt2", "GPT2LMHeadModel", "gpt2", 160, 548_105_171), about, weights, head)


def hostile() -> Report:
    """bert-base-uncased with names that attack the terminal, Rich's markup and JSON."""
    labels = ("\x1b[2Jgone", "[red]a[/0]", "c1 \x9b31m \u202e bidi \ud800 :smile:")
    honest = with_model(bert(), labels=labels, labels_are_placeholders=False)
    facts = replace(honest.checkpoint, reference="[link=http://x]e\x1b]0;vil\x07", notices=("line\nbreak\x00",))
    return replace(honest, checkpoint=facts)


REPORTS = {
    "roberta": roberta,
    "bert": bert,
    "distilbert-mismatch": distilbert_mismatch,
    "gpt2": gpt2,
    "hostile": hostile,
}
