"""Rules on what the checkpoint is: its kind, its state, its number format, its code, its adapter."""

import json

from headscope.checks.facts import Subject
from headscope.checks.rules.cures import safetensors_code
from headscope.checks.rules.rule import (
    HOW_TO_GIVE_CODE,
    Findings,
    NotKnown,
    Rule,
    classifier_of,
    for_profile,
    head_of,
    live_parameters,
    rule,
    severity_at,
)
from headscope.core.facts import AdapterFault, ParameterStatus, Profile, Severity, StateKind, Task, WeightsFormat
from headscope.core.facts.counting import few_of, verb
from headscope.core.facts.report import Quantization, find_missing
from headscope.core.facts.stored.adapter import AdapterFacts, AdapterFaultKind, describe_fault
from headscope.core.facts.stored.checkpoint import DECISION_CLASS
from headscope.core.facts.stored.states import STATE_RULES
from headscope.core.facts.stored.weights import NEW_AT_LOAD

_GIVEN = (ParameterStatus.LOADED, ParameterStatus.CHANGED)
_NO_FLOAT = ("int8", "uint8", "int4", "float8_e4m3fn", "float8_e5m2")


@rule("HS401", "wrong-kind", "The checkpoint is not a classifier", finds="N|EWN")
def wrong_kind(this: Rule, subject: Subject) -> Findings:
    """A language model, a base model, a sentence embedder, or a classifier for another task."""
    yield from _find_other_task(this, subject)
    last = classifier_of(subject) if subject.report.head is not None else None
    if subject.built.kind is None or (last is not None and last.status in _GIVEN):
        return  # whatever the configuration calls it, the checkpoint gave the classifier
    names = subject.report.checkpoint.architectures
    made = f" (architectures: {few_of(names)})" if names else ""
    if subject.report.shows_chain and not subject.report.model.num_labels:
        yield this.find(
            Severity.NOTE,
            f"The checkpoint is a {subject.built.kind}{made}: it gives an embedding, not class scores.",
            "For class scores, train a classifier on the embeddings, or fine-tune a class that --task names.",
        )
        return
    yield this.find(
        severity_at(subject, training=Severity.NOTE, inference=Severity.WARNING),
        f"The checkpoint is a {subject.built.kind}{made} without a classifier.",
        for_profile(
            subject,
            training="This is what fine-tuning usually starts from.",
            inference="Fine-tune it as a classifier before you serve it."
            + (_BY_TOKENS if subject.built.kind == "language model" else ""),
        ),
    )


_BY_TOKENS = (
    " If its answers are words such as no and yes, as those of generative rerankers and judges, their rows of the "
    "vocabulary are the classifier: `headscope inspect MODEL --tokens no,yes`."
)


def _find_other_task(this: Rule, subject: Subject) -> Findings:
    """Finds a head that was trained for one task and is loaded for another."""
    trained, model = subject.built.trained_for, subject.report.model
    if trained is None or trained is model.task or model.class_name in subject.report.checkpoint.architectures:
        return
    tensors = subject.report.head.tensors if subject.report.head else ()
    kept = [item.name for item in tensors if item.live and item.status is ParameterStatus.LOADED]
    yield this.find(
        severity_at(subject, training=Severity.NOTE, inference=Severity.ERROR if kept else Severity.WARNING),
        f"The checkpoint's architectures names {few_of(subject.report.checkpoint.architectures)}, trained for "
        f"{trained.value}, and it is loaded as {model.class_name}, for {model.task.value}"
        + (
            f": {few_of(kept)} {'holds' if len(kept) == 1 else 'hold'} what was learned for the other task."
            if kept
            else "."
        ),
        for_profile(
            subject,
            training="Train the head for the new task, or load the class that architectures names.",
            inference="Load the class that architectures names, or train the head for the new task first.",
        ),
        kept,
    )


@rule("HS113", "own-class", "The saved class is not one of Transformers", finds="N|")
def own_class(this: Rule, subject: Subject) -> Findings:
    """A class in `architectures` that Transformers lacks: what it computes is known from its code alone."""
    model = subject.report.model
    if not model.is_saved_by_own_code:
        return
    what = (
        f"config.json names {model.saved_class}, a class that Transformers doesn't have; it is loaded as "
        f"{model.class_name}"
    )
    if subject.profile is Profile.INFERENCE:
        raise NotKnown(
            f"{what}, and what {model.saved_class} computes is in its code. {HOW_TO_GIVE_CODE}", Severity.ERROR
        )
    yield this.find(Severity.NOTE, f"{what}.", HOW_TO_GIVE_CODE)


@rule("HS402", "head-dtype", "The head's dtype is unsuitable for training", finds="EW|W")
def head_dtype(this: Rule, subject: Subject) -> Findings:
    """Weights of the head in half precision (training) or in no floating point that a layer computes in."""
    live = live_parameters(subject)
    stored = {item.name: item.dtype for item in live if item.dtype in _NO_FLOAT and item.quantized is None}
    packed = list(stored)
    half = [item.name for item in live if item.dtype == "float16"]
    if packed:
        yield this.find(
            severity_at(subject, training=Severity.ERROR, inference=Severity.WARNING),
            f"Weights of the head are stored as {', '.join(dict.fromkeys(stored.values()))}: {few_of(packed)}.",
            "Leave the head out of the quantization (modules_to_not_convert or similar).",
            packed,
        )
    if half and subject.profile is Profile.TRAINING:
        yield this.find(
            Severity.WARNING,
            f"Training the head in float16 loses small gradients: {few_of(half)}.",
            "Load with dtype=torch.float32 or bfloat16, and use autocast (fp16=True) for half precision.",
            half,
        )


@rule("HS403", "remote-code", "The checkpoint brings its own code", finds="W|W")
def remote_code(this: Rule, subject: Subject) -> Findings:
    """auto_map in the configuration: loading with trust_remote_code runs code from the repository."""
    if subject.config.has_auto_map:
        yield this.find(
            Severity.WARNING,
            "config.json names model code in the repository (auto_map), which trust_remote_code=True would run.",
            "Read that code, then pin the revision you read.",
        )


@rule("HS405", "module-broken", "A module of sentence-transformers cannot be loaded")
def module_broken(this: Rule, subject: Subject) -> Findings:
    """A Dense layer whose weights are missing, or have other shapes than its settings or the module before."""
    pipeline = subject.report.checkpoint.sentence_transformers
    for part in pipeline.parts if pipeline is not None else ():
        if part.fault:
            yield this.find(
                Severity.ERROR,
                f"sentence-transformers raises an error for {part.folder} ({part.name}): {part.fault}.",
                "Save the model again with save_pretrained, or restore the files of that folder.",
            )


@rule("HS406", "other-head", "Transformers does not load the head in this checkpoint", finds="N|W")
def other_head(this: Rule, subject: Subject) -> Findings:
    """A head of another library beside the model (TRL's value head, a head of adapters) that the class leaves out."""
    checkpoint = subject.report.checkpoint
    unused = set(subject.report.weights.unused)
    for head in checkpoint.score_heads:
        if not unused.intersection(head.tensors):
            continue  # the class loads this head, under the same names
        yield this.find(
            severity_at(subject, training=Severity.NOTE, inference=Severity.WARNING),
            f"The checkpoint holds {head.name} ({head.scores} {'score' if head.scores == 1 else 'scores'} from "
            f"{head.weight}), but {subject.report.model.class_name} does not load it.",
            "Load the checkpoint with the library that saved it (TRL saves v_head, adapters saves heads.NAME), or copy "
            "these weights into the classifier yourself.",
        )


@rule("HS407", "decision-files", "The files of a decision head contradict each other")
def decision_files(this: Rule, subject: Subject) -> Findings:
    """Temperatures and rows that are not those of the types of questions; an adapter that headscope leaves out."""
    decision = subject.report.checkpoint.decision
    if decision is None or subject.report.model.class_name != DECISION_CLASS:
        return
    if decision.faults:
        yield this.find(
            Severity.ERROR,
            f"The files of this decision head don't fit: {'; '.join(decision.faults)}.",
            "Use the files that were written when the head was calibrated: each type of questions has its own rows and "
            "temperature.",
        )
    elif decision.adapter:
        raise NotKnown(
            f"Transformers' pipeline puts the adapter in {decision.adapter}/ on the model, and headscope left it out",
            Severity.ERROR,
        )


@rule("HS404", "head-quantized", "The head is quantized", finds="E|W")
def head_quantized(this: Rule, subject: Subject) -> Findings:
    """A head that is packed in few bits, or that would be when it is made."""
    facts = subject.report.model.quantization
    if facts is None:
        return
    live = live_parameters(subject)
    if facts.head_quantized is None:
        raise NotKnown("headscope could not determine how the head is stored")
    packed = [item.name for item in live if item.quantized is not None]
    if packed:
        yield this.find(
            severity_at(subject, training=Severity.ERROR, inference=Severity.WARNING),
            f"{few_of(packed)} of the head is quantized by {facts.method}: its scores are coarse, "
            "and it can't be trained.",
            f"Quantize the original again without the layers of the head: {_skip_list(subject, facts)}.",
            packed,
        )
    fresh = [item.name for item in live if item.status in NEW_AT_LOAD]
    if facts.method == "bitsandbytes" and facts.skips_head is False and fresh:
        skips = f"skips {few_of(facts.skipped)} but not the head" if facts.skipped else "doesn't skip the head"
        yield this.find(
            severity_at(subject, training=Severity.ERROR, inference=Severity.WARNING),
            f"The quantization config {skips}: {few_of(fresh)} {verb(len(fresh))} new and would be quantized.",
            f"Name the layers of the head in the quantization_config: {_skip_list(subject, facts)}.",
            fresh,
        )


def _skip_list(subject: Subject, facts: Quantization) -> str:
    """Writes the setting that leaves the head and what is skipped already unquantized; a list replaces the default."""
    layers = (item.name.rpartition(".")[0] for item in head_of(subject).matrices)
    names = dict.fromkeys((*facts.skipped, *filter(None, layers)))
    return f"{_SKIP_SETTINGS.get(facts.method, 'modules_to_not_convert')}={json.dumps([*names])}"


_SKIP_SETTINGS = {"bitsandbytes": "llm_int8_skip_modules", "compressed-tensors": "ignore"}
"""How methods of quantization call the modules that they leave out, where not `modules_to_not_convert`."""


_TITLES = {
    StateKind.WRAPPED_KEYS: ("wrapped-keys", "The keys carry the names of a wrapper"),
    StateKind.PEFT_KEYS: ("peft-keys", "The file is the state dict of a PEFT model"),
    StateKind.DEEPSPEED: ("deepspeed-checkpoint", "The weights are a training checkpoint of DeepSpeed"),
    StateKind.DISTRIBUTED: ("distributed-checkpoint", "The weights are a distributed checkpoint"),
    StateKind.MEGATRON: ("megatron-ranks", "The weights are a checkpoint of Megatron"),
    StateKind.LIGHTNING: ("training-file", "The weights are inside a file of a training run"),
    StateKind.TRAINER_OUTPUT: ("trainer-output", "The folder is the output of a Trainer"),
    StateKind.NO_CONFIG: ("no-config", "The weights have no config.json"),
    StateKind.OTHER_FORMAT: ("other-format", "The weights are in the format of another framework"),
    StateKind.POINTER: ("lfs-pointer", "The weights are Git LFS pointers"),
    StateKind.HALF_DOWNLOAD: ("half-download", "The checkpoint is not complete"),
}


def _report_states(this: Rule, subject: Subject) -> Findings:
    """Finds the checkpoint's states that this rule reports, each with its repair."""
    for state in subject.report.checkpoint.states:
        if state.rule != this.id:
            continue
        message = f"{state.sentence} {state.seen()}".strip()
        repair = state.repair
        advice, code = (repair.advice(), repair.code_from(subject.folder)) if repair else (state.remedy, "")
        yield this.find(Severity.ERROR, message, advice, code=code)


# One function is the judge of all these rules: each state is found by the readers, and only its id and title differ.
for kind, (name, title) in _TITLES.items():
    rule(STATE_RULES[kind], name, title)(_report_states)


@rule("HS108", "pickled-weights", "The weights are a pickle", finds="W|W")
def pickled_weights(this: Rule, subject: Subject) -> Findings:
    """Weights in PyTorch's own format, which is a program."""
    if subject.report.checkpoint.format is WeightsFormat.TORCH:
        yield this.find(
            Severity.WARNING,
            "Tools that load the weights without weights_only=True run it as a program.",
            "Save them again with save_pretrained, which writes safetensors.",
            subject.report.checkpoint.files,
            code=safetensors_code(subject),
        )


_PEFT_TASKS = {
    Task.SEQUENCE_CLASSIFICATION: "SEQ_CLS",
    Task.TOKEN_CLASSIFICATION: "TOKEN_CLS",
    Task.QUESTION_ANSWERING: "QUESTION_ANS",
}
"""PEFT's task types of heads: https://huggingface.co/docs/peft/package_reference/peft_types#peft.TaskType."""


@rule("HS107", "adapter-without-head", "The adapter does not carry the head")
def adapter_without_head(this: Rule, subject: Subject) -> Findings:
    """Weights of the head that neither the base model nor the adapter gives."""
    adapter = subject.report.adapter
    if adapter is None:
        return
    if adapter.promised:
        yield this.find(
            Severity.ERROR,
            f"PEFT looks for {few_of(adapter.promised)} in the adapter's file and raises a KeyError, because it isn't "
            f"there.",
            "Save the adapter again with PeftModel.save_pretrained, which writes modules_to_save.",
            adapter.promised,
        )
    # Without a head path nobody knows which of the missing weights are the head's: all of them are listed then.
    is_untraced = bool(adapter.own_class) and subject.report.head is None
    names = find_missing(subject.report).elsewhere if is_untraced else adapter.not_carried
    if names and adapter.own_class:
        merged = "" if adapter.virtual_tokens else ", after merge_and_unload with this adapter,"
        yield this.find(
            Severity.ERROR,
            f"This is an adapter of {adapter.own_model}, and it holds no classifier: nothing gives {few_of(names)}: "
            "newly initialized at every load.",
            f"To use it as it is, load it on {adapter.own_class}. To train a classifier, load the base model{merged} "
            f"with {subject.report.model.class_name}, and train an adapter of task_type SEQ_CLS (TOKEN_CLS for "
            "tokens).",
            names,
        )
    elif names:
        task = _PEFT_TASKS.get(subject.report.model.task)
        by_task = f'task_type="{task}" and ' if task and task != adapter.task_type else ""
        yield this.find(
            Severity.ERROR,
            f"Neither the base model nor the adapter gives {few_of(names)}: newly initialized at every load.",
            f"Train again with {by_task}modules_to_save={list(adapter.modules_to_save)} in the LoraConfig.",
            names,
        )


_LISTED = 3


@rule("HS109", "adapter-misfit", "The adapter does not fit", finds="EW|EW")
def adapter_misfit(this: Rule, subject: Subject) -> Findings:
    """Settings or tensors of an adapter that contradict its configuration or the base model, or need another load."""
    adapter = subject.report.adapter
    faults = list(adapter.faults) if adapter is not None else []
    if adapter is not None and not faults and (adapter.load_options or adapter.word_rows):
        sizes = [*adapter.load_options[:1], *([f"{adapter.word_rows:,} tokens"] if adapter.word_rows else [])]
        yield this.find(
            Severity.WARNING,
            f"Its tensors are for a base model with {' and '.join(sizes)}, which {adapter.base} isn't as it is stored: "
            "a plain PeftModel.from_pretrained raises an error.",
            "Give the base model these sizes before the adapter:",
            code=_code_of_load(adapter, subject.report.model.class_name),
        )
    if not faults:
        return
    refused = any(item.kind.is_refused for item in faults)
    what = "PeftModel.from_pretrained fails" if refused else "The loaded adapter is not the one that was trained"
    listed = "; ".join(describe_fault(item) for item in faults[:_LISTED])
    more = f"; and {len(faults) - _LISTED:,} more" if len(faults) > _LISTED else ""
    yield this.find(
        Severity.ERROR,
        f"{what}: {listed}{more}.",
        _remedy_of_words(faults)
        or "Use the adapter_config.json and the base model that the adapter was trained with, or save it again with "
        "PeftModel.save_pretrained.",
        [item.name for item in faults],
    )


def _code_of_load(adapter: AdapterFacts, class_name: str) -> str:
    """Writes the code that gives the base model the sizes of the adapter's tensors, and loads the adapter on it."""
    options = ", ".join((repr(adapter.base), *adapter.load_options))
    resize = f"model.resize_token_embeddings({adapter.word_rows})\n" if adapter.word_rows else ""
    return (
        f"from peft import PeftModel\nfrom transformers import {class_name}\n\n"
        f"model = {class_name}.from_pretrained({options})\n{resize}"
        f"model = PeftModel.from_pretrained(model, {adapter.reference!r})"
    )


def _remedy_of_words(faults: list[AdapterFault]) -> str:
    """Gives the remedy for word embeddings of another number of tokens than the base model's; "" for other faults."""
    tokens = next((item.found for item in faults if item.kind is AdapterFaultKind.WORD_ROWS), "")
    return tokens and (
        f"Call model.resize_token_embeddings({tokens}) before PeftModel.from_pretrained; for more tokens than the base "
        "model has, PEFT's AutoPeftModel does it where the tokenizer of the training is beside the adapter."
    )
