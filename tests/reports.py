"""Reports written by hand after the real checkpoints: what the screens are tested on."""

from dataclasses import replace
from math import prod

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
    return Stage(
        index,
        operation,
        module,
        module_class,
        functional,
        (shapes[0],),
        shapes[1],
        parameters,
        *source,
        detail,
        (index - 1,),
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
    dense, out = tuple(p.name for p in parameters[:2]), tuple(p.name for p in parameters[2:])
    stages = (
        stage(
            0,
            "select",
            "classifier",
            "RobertaClassificationHead",
            (ROBERTA, 1155),
            (TOKENS, VECTOR),
            (),
            "[:, 0, :]",
        ),
        stage(1, "dropout", "classifier.dropout", "Dropout", (ROBERTA, 1156), (VECTOR, VECTOR), (), "p=0.1"),
        stage(2, "linear", "classifier.dense", "Linear", (ROBERTA, 1157), (VECTOR, VECTOR), dense),
        stage(3, "tanh", "classifier", "RobertaClassificationHead", (ROBERTA, 1158), (VECTOR, VECTOR)),
        stage(4, "dropout", "classifier.dropout", "Dropout", (ROBERTA, 1159), (VECTOR, VECTOR), (), "p=0.1"),
        stage(5, "linear", "classifier.out_proj", "Linear", (ROBERTA, 1160), (VECTOR, ("batch", 3)), out),
    )
    pooling = Pooling(
        PoolingKind.FIRST_TOKEN,
        ("<s>",),
        "position 0 of every sequence, the <s> token, padding or not",
        (Evidence("select", "classifier", ROBERTA, 1155),),
        one_part(PoolingKind.FIRST_TOKEN, Positions(Where.INDEX, 0, token="<s>")),
    )
    unused = (
        "lm_head.bias", "lm_head.dense.bias", "lm_head.dense.weight", "lm_head.layer_norm.bias",
        "lm_head.layer_norm.weight",
    )  # fmt: skip
    embedding = "roberta.embeddings.word_embeddings.weight"
    shapes = ((50265,), (768,), (768, 768), (768,), (768,))
    base = (
        origin(embedding, (50265, 768), LOADED, (embedding,), True),
        *encoder_layers("roberta.encoder.layer", "roberta.encoder.layer"),
    )  # fmt: skip
    weights = WeightDiff(
        loaded=197,
        new=tuple(sorted(p.name for p in parameters)),
        mismatched=(),
        unused=unused,
        tied=(),
        renamed=renames_of(base),
        unused_groups=(UnusedGroup(unused, "masked-language-model head", ("RobertaForMaskedLM",)),),
        parameters=(*base, *(origin(p.name, p.shape, NEW, (), False) for p in parameters)),
        unused_tensors=tuple(TensorHeader(k, "float32", s) for k, s in zip(unused, shapes, strict=True)),
    )
    head = Head(
        ("classifier",), pooling, stages, parameters, "logits = out_proj(tanh(dense(h[<s>])))", TOKENS,
        features="tanh(dense(h[<s>]))",
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
    dense, out = tuple(p.name for p in parameters[:2]), tuple(p.name for p in parameters[2:])
    stages = (
        stage(0, "select", "bert.pooler", "BertPooler", (BERT, 460), (TOKENS, VECTOR), (), "[:, 0]"),
        stage(1, "linear", "bert.pooler.dense", "Linear", (BERT, 461), (VECTOR, VECTOR), dense),
        stage(2, "tanh", "bert.pooler.activation", "Tanh", (BERT, 462), (VECTOR, VECTOR)),
        stage(3, "dropout", "dropout", "Dropout", (BERT, 1140), (VECTOR, VECTOR), (), "p=0.1"),
        stage(4, "linear", "classifier", "Linear", (BERT, 1141), (VECTOR, ("batch", 3)), out),
    )
    pooling = Pooling(
        PoolingKind.FIRST_TOKEN,
        ("[CLS]",),
        "position 0 of every sequence, the [CLS] token, padding or not",
        (Evidence("select", "bert.pooler", BERT, 460),),
        one_part(PoolingKind.FIRST_TOKEN, Positions(Where.INDEX, 0, token="[CLS]")),
    )
    masked = (
        "cls.predictions.bias", "cls.predictions.decoder.weight", "cls.predictions.transform.LayerNorm.beta",
        "cls.predictions.transform.LayerNorm.gamma", "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.dense.weight",
    )  # fmt: skip
    sentence = ("cls.seq_relationship.bias", "cls.seq_relationship.weight")
    base = encoder_layers("bert.encoder.layer", "bert.encoder.layer")
    weights = WeightDiff(
        loaded=199,
        new=("classifier.bias", "classifier.weight"),
        mismatched=(),
        unused=(*masked, *sentence),
        tied=(),
        renamed=renames_of(base),
        unused_groups=(
            UnusedGroup(masked, "masked-language-model head", ("BertForMaskedLM",)),
            UnusedGroup(sentence, "next-sentence-prediction head", ("BertForNextSentencePrediction",)),
        ),
        parameters=(
            *base,
            *(origin(p.name, p.shape, p.status, p.checkpoint_keys, "pooler" in p.name) for p in parameters),
        ),
    )
    head = Head(
        ("bert.pooler", "dropout", "classifier"), pooling, stages, parameters,
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
    dense, out = tuple(p.name for p in parameters[:2]), tuple(p.name for p in parameters[2:])
    owner = "DistilBertForSequenceClassification"
    stages = (
        stage(0, "select", "", owner, (DISTILBERT, 634), (TOKENS, VECTOR), (), "[:, 0]"),
        stage(1, "linear", "pre_classifier", "Linear", (DISTILBERT, 635), (VECTOR, VECTOR), dense),
        stage(2, "relu", "", owner, (DISTILBERT, 636), (VECTOR, VECTOR)),
        stage(3, "dropout", "dropout", "Dropout", (DISTILBERT, 637), (VECTOR, VECTOR), (), "p=0.2"),
        stage(4, "linear", "classifier", "Linear", (DISTILBERT, 638), (VECTOR, ("batch", 3)), out),
    )
    pooling = Pooling(
        PoolingKind.FIRST_TOKEN,
        ("[CLS]",),
        "position 0 of every sequence, the [CLS] token, padding or not",
        (Evidence("select", "", DISTILBERT, 634),),
        one_part(PoolingKind.FIRST_TOKEN, Positions(Where.INDEX, 0, token="[CLS]")),
    )
    weights = WeightDiff(
        loaded=102,
        new=(),
        mismatched=(
            Mismatch("classifier.bias", (2,), (3,)),
            Mismatch("classifier.weight", (2, 768), (3, 768)),
        ),
        unused=(),
        tied=(),
        renamed=(),
        parameters=tuple(origin(p.name, p.shape, p.status, p.checkpoint_keys, False) for p in parameters),
    )
    head = Head(
        ("pre_classifier", "dropout", "classifier"), pooling, stages, parameters,
        "logits = classifier(relu(pre_classifier(h[[CLS]])))", TOKENS,
        features="relu(pre_classifier(h[[CLS]]))",
    )  # fmt: skip
    counts = ParameterCounts(66_955_779, 66_362_880, 592_899, 592_899)
    about = model("DistilBertForSequenceClassification", counts)
    name = "distilbert-base-uncased-finetuned-sst-2-english"
    facts = checkpoint(name, "DistilBertForSequenceClassification", "distilbert", 104, 267_832_558)
    return report(facts, about, weights, head)


def gpt2() -> Report:
    """gpt2 with three labels: one score for every token, the last one that is no padding is taken."""
    parameters = (head_parameter("score.weight", (3, 768), NEW),)
    owner = "GPT2ForSequenceClassification"
    scores: Shape = ("batch", "sequence", 3)
    stages = (
        stage(0, "linear", "score", "Linear", (GPT2, 920), (TOKENS, scores), ("score.weight",)),
        stage(
            1,
            "index",
            "",
            owner,
            (GPT2, 945),
            (scores, ("batch", 3)),
            (),
            "[range(batch), last_non_pad_token]",
        ),
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
    weights = WeightDiff(
        loaded=148,
        new=("score.weight",),
        mismatched=(),
        unused=unused,
        tied=(),
        renamed=renames_of(base),
        unused_groups=(UnusedGroup(unused, "buffers that Transformers computes", reason=UnplacedReason.OLDER_VERSION),),
        parameters=(*base, origin("score.weight", (3, 768), NEW, (), False)),
        unused_tensors=tuple(
            TensorHeader(key, "float32", (1, 1, 1024 if key != unused[7] else 512, 1024)) for key in unused
        ),
    )
    head = Head(
        ("score",), pooling, stages, parameters, "logits = score(h)[last non-pad]", TOKENS,
        (UnusedModule("transformer.wpe_extra", "Embedding", False),), features="h[last non-pad]",
    )  # fmt: skip
    counts = ParameterCounts(124_442_112, 124_439_808, 2304, 2304)
    about = model("GPT2ForSequenceClassification", counts)
    return report(checkpoint("gpt2", "GPT2LMHeadModel", "gpt2", 160, 548_105_171), about, weights, head)


def hostile() -> Report:
    """bert-base-uncased with names that attack the terminal, Rich's markup and JSON."""
    honest = bert()
    labels = ("\x1b[2Jgone", "[red]a[/0]", "c1 \x9b31m \u202e bidi \ud800 :smile:")
    return replace(
        honest,
        checkpoint=replace(honest.checkpoint, reference="[link=http://x]e\x1b]0;vil\x07", notices=("line\nbreak\x00",)),
        model=replace(honest.model, labels=labels, labels_are_placeholders=False),
    )


REPORTS = {
    "roberta": roberta,
    "bert": bert,
    "distilbert-mismatch": distilbert_mismatch,
    "gpt2": gpt2,
    "hostile": hostile,
}
