"""Rules on a run: the model was loaded and called as its user calls it, and an effect was seen.

An effect is the finding. Rules on files name its cause; where a run saw no effect, those that only foresee one are left
out (`without_unseen`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headscope.checks.facts import Subject
from headscope.checks.rules.cures import length_code
from headscope.checks.rules.rule import Findings, Rule, head_of, rule, severity_at
from headscope.core.facts import Finding, PoolingKind, Profile, Severity
from headscope.core.facts.counting import counted, few_of, verb
from headscope.core.facts.trial import BatchCure, RaisedError, RunStep, RunTrial

_MOST_UNKNOWN = 0.9
"""The share of unknown tokens from which a text holds next to no information: a vocabulary of another language or an
empty one has all, a text in a script that is rare in the vocabulary about half."""
_LITTLE_OF_IMAGE = 0.1
"""How far apart the values of a channel are, in relation to their size, for an image to be there: ordinary processors
give 1 or more; one that divides by 255 twice, or takes a mean of 127.5 from values up to 1, at most 0.02."""
_OF_MORE = {
    RunStep.BATCH: "a padded batch fails",
    RunStep.AGAIN: "the same input again raises",
    RunStep.CHANGED: "an input with other content raises",
    RunStep.LONG: "a long text can't be encoded",
}
"""What a run does beyond single inputs, and the words for a failure there."""


def _run_of(subject: Subject) -> RunTrial:
    assert subject.run is not None  # the rules need it
    return subject.run


def _inputs_in_words(trial: RunTrial, count: int, one: str, many: str) -> str:
    """Says how many inputs do something, such as "every text raises" or "3 of 14 texts raise"."""
    total = trial.scope.inputs
    if count == total:
        return f"every {trial.noun} {one}"
    return f"{count} of {counted(total, trial.noun)} {verb(count, one, many)}"


@rule("HS521", "run-raises", "Calling the model raises an error", needs=("run",), finds="EW|EW")
def run_raises(this: Rule, subject: Subject) -> Findings:
    """An error on ordinary inputs, in a padded batch, or in Transformers' pipeline."""
    trial = _run_of(subject)
    single = [item for item in trial.raised if item.step in (RunStep.SINGLE, RunStep.LOADING)]
    if single:
        is_pairs_only = {item.input for item in single} == {"pair"} and not trial.always_fails
        extra = (
            f" The tokenizer gives {few_of(trial.not_taken)}, which the model doesn't take." if trial.not_taken else ""
        )
        first = max(single, key=lambda item: item.count)
        is_of_length = trial.fails_at_length is not None and _class_of(first.error) == _class_of(trial.length_error)
        what = "pairs of texts raise, and single texts don't" if is_pairs_only else _describe_failure(trial, first)
        yield this.find(
            Severity.WARNING if is_pairs_only else Severity.ERROR,
            f"In a trial run, {what}: {first.error}.{extra}",
            _REMEDY_OF_LOADING
            if first.step is RunStep.LOADING
            else _REMEDY_OF_LONG_PAIRS
            if is_pairs_only and is_of_length
            else _remedy_of_failure(trial),
        )
    for item in trial.raised:
        if item.step in _OF_MORE and not single:
            is_of_images = item.step is RunStep.BATCH and trial.noun == "image"
            yield this.find(
                # Nothing pads images: who calls them one by one, as a pipeline does, sees no error.
                Severity.WARNING if trial.keeps_sizes and item.step is RunStep.BATCH else Severity.ERROR,
                f"Single {trial.noun}s run, but "
                f"{'a batch of them fails' if is_of_images else _OF_MORE[item.step]}: {item.error}.",
                _remedy_of_failure(trial),
            )
        if any(item.error == other.error for other in single):  # HS521 has it above
            continue  # one fault, one finding
        if item.step is RunStep.PIPELINE and trial.library:
            yield this.find(
                Severity.ERROR,
                f"The modules run one after the other, but {item.input} of sentence-transformers fails: {item.error}.",
                "Save the model again with save_pretrained, and compare modules.json and the modules' settings.",
            )
        elif item.step is RunStep.PIPELINE:
            yield this.find(
                Severity.ERROR,
                f"The model runs, but Transformers' pipeline raises with it: {item.error}.",
                _REMEDY_OF_PIPELINE,
            )


def _describe_failure(trial: RunTrial, error: RaisedError) -> str:
    return (
        "loading it raises"
        if error.step is RunStep.LOADING
        else _inputs_in_words(trial, trial.failed, "raises", "raise")
    )


def _class_of(error: str) -> str:
    """Gives the class of an error, by its text; "" for none."""
    return error.partition(":")[0]


def _remedy_of_failure(trial: RunTrial) -> str:
    return _REMEDY_OF_SIZES if trial.keeps_sizes else _REMEDY


_REMEDY_OF_SIZES = (
    "The processor keeps the shape of an image: set size in preprocessor_config.json to a height and a width, or "
    "do_center_crop to true with a crop_size, as in the training."
)
_REMEDY_OF_LONG_PAIRS = "Long texts raise it too (HS528): pairs may just be longer."
_REMEDY = "Use the configuration, and the tokenizer or processor, that the model was trained with."
_REMEDY_OF_PIPELINE = "Compare config.json with that of the base model: `return_dict`, `architectures`, `id2label`."
_REMEDY_OF_LOADING = "Load it with Transformers to see the whole error, and save the files that it names again."


@rule("HS522", "run-not-finite", "The scores are not finite", needs=("run",))
def run_not_finite(this: Rule, subject: Subject) -> Findings:
    """NaN or infinity among the scores of ordinary inputs."""
    trial = _run_of(subject)
    if trial.not_finite:
        half = trial.dtype if trial.dtype in ("float16", "bfloat16") else ""
        some = _inputs_in_words(trial, trial.not_finite, "has", "have")
        yield this.find(
            Severity.ERROR,
            f"In a trial run, {some} scores with NaN or infinity{f', in {half}' if half else ''}.",
            "Load it with dtype=torch.float32, where these activations don't overflow, or use an earlier checkpoint."
            if half
            else "The training diverged, or config.json is not the one used in training. Use an earlier checkpoint.",
        )


@rule("HS523", "run-all-alike", "All inputs get the same scores", needs=("run",), finds="W|E")
def run_all_alike(this: Rule, subject: Subject) -> Findings:
    """Scores that no input changes by more than rounding."""
    trial = _run_of(subject)
    why, remedy = _cause_in_causal_mask(subject) or ("", _REMEDY_OF_ALIKE)
    if trial.all_alike:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"In a trial run, all {counted(trial.scope.inputs, trial.noun)} get the same scores.{why}",
            remedy,
        )


def _cause_in_causal_mask(subject: Subject) -> tuple[str, str] | None:
    """Gives cause and cure where the head reads a first token that, under a causal mask, sees no other; or None."""
    head = subject.report.head
    if not subject.config.is_decoder or head is None or head.pooling.kind is not PoolingKind.FIRST_TOKEN:
        return None
    why = " is_decoder is true, so the first token, which the head reads, sees no other."
    return why, "Set is_decoder to false in config.json."


_REMEDY_OF_ALIKE = (
    "No input reaches the scores: compare configuration, tokenizer and weights with those of the training."
)


@rule("HS524", "run-ignores-middle", "The scores ignore most of the input", needs=("run",), finds="W|EW")
def run_ignores_middle(this: Rule, subject: Subject) -> Findings:
    """Scores that stay when all tokens between the first and the last are replaced; images that are almost empty."""
    trial = _run_of(subject)
    if trial.image_spread is not None and trial.image_spread < _LITTLE_OF_IMAGE:
        yield this.find(
            Severity.WARNING,
            "The processor leaves next to nothing of an image: within a channel, its values differ by at most "
            f"{trial.image_spread:.2g} of their size (ordinary: 1 or more), so all images look almost the same.",
            "Correct preprocessor_config.json: while do_rescale is true, rescale_factor is 1/255, and image_mean and "
            "image_std are for values between 0 and 1.",
        )
    if trial.ignores_middle and not trial.all_alike:
        is_of_words = trial.noun in ("text", "pair", "input")
        why, remedy = (_cause_in_causal_mask(subject) if is_of_words else None) or ("", _REMEDY_OF_MIDDLE)
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            f"In a trial run, other words between the first and the last token change no score beyond rounding.{why}"
            if is_of_words
            else f"In a trial run, noise of the same size instead of {trial.noun}s changes no score beyond rounding.",
            remedy,
        )


_REMEDY_OF_MIDDLE = "Compare weights and configuration with those of the training: embeddings, attention, masks."


@rule("HS525", "run-batch-differs", "An input has other scores in a batch than alone", needs=("run",), finds="EW|EW")
def run_batch_differs(this: Rule, subject: Subject) -> Findings:
    """Padding that changes scores, by more than rounding explains."""
    trial = _run_of(subject)
    if trial.batch_differs:
        padding = f"padded on the {trial.side}" if trial.side else "together"
        more, remedy = _CURES[trial.batch_cure]
        yield this.find(
            Severity.ERROR if trial.batch_cure else Severity.WARNING,
            f"{trial.noun.capitalize()}s {padding} have scores that differ from those of each alone by up to "
            f"{trial.batch_difference:.2g} (rounding explains {trial.batch_bound:.2g}){more}.",
            remedy,
        )


_WITH_MASK = 'tokenizer.model_input_names = ["input_ids", "attention_mask"]'
_CURES = {
    BatchCure.NONE: ("", "Classify inputs one at a time, or in batches of equal length."),
    BatchCure.ATTENTION_MASK: (
        "; with an attention mask, which the tokenizer leaves out, they are equal",
        f"Set {_WITH_MASK}, and save the tokenizer.",
    ),
    BatchCure.PADDING_LEFT: (
        "; padded on the left they are equal", "Set tokenizer.padding_side = 'left', and save the tokenizer.",
    ),
    BatchCure.PADDING_RIGHT: (
        "; padded on the right they are equal", "Set tokenizer.padding_side = 'right', and save the tokenizer.",
    ),
    BatchCure.MASK_AND_LEFT: (
        "; padded on the left, with the attention mask that the tokenizer leaves out, they are equal",
        f"Set {_WITH_MASK} and tokenizer.padding_side = 'left', and save the tokenizer.",
    ),
    BatchCure.MASK_AND_RIGHT: (
        "; padded on the right, with the attention mask that the tokenizer leaves out, they are equal",
        f"Set {_WITH_MASK} and tokenizer.padding_side = 'right', and save the tokenizer.",
    ),
}  # fmt: skip
"""What makes a batch equal, and how to do it."""


@rule("HS526", "run-not-repeatable", "Two calls with the same input differ", needs=("run",), finds="N|EW")
def run_not_repeatable(this: Rule, subject: Subject) -> Findings:
    """Dropout that stays on, a model in train mode, or noise."""
    if _run_of(subject).in_train_mode and subject.profile is Profile.INFERENCE:
        yield this.find(
            Severity.WARNING,
            "The model is in train mode: dropout changes its scores from call to call.",
            "Call model.eval() before inference.",
        )
    if _run_of(subject).repeats_equal is False:
        yield this.find(
            severity_at(subject, training=Severity.NOTE, inference=Severity.ERROR),
            "The same input, called twice, has different scores: dropout or another random layer is on.",
            "Call model.eval() before inference; look for dropout that its code applies in eval mode too.",
        )


@rule("HS527", "run-unknown-tokens", "The tokenizer knows almost no words", needs=("run",))
def run_unknown_tokens(this: Rule, subject: Subject) -> Findings:
    """Texts, also those made of the vocabulary itself, that become unknown tokens."""
    share = _run_of(subject).unknown_tokens
    if share is not None and share >= _MOST_UNKNOWN:
        yield this.find(
            Severity.ERROR,
            f"The tokenizer that Transformers loads loses the words: {share:.0%} of the tokens of ordinary texts are "
            "unknown, or one and the same.",
            "Save the tokenizer of the training beside the model: tokenizer.save_pretrained(FOLDER).",
        )


@rule("HS528", "run-length-fails", "Long texts raise an error", needs=("run",), finds="EW|EW")
def run_length_fails(this: Rule, subject: Subject) -> Findings:
    """A text as long as the tokenizer allows, on which the model fails."""
    trial = _run_of(subject)
    adapter, positions = subject.report.adapter, subject.built.positions
    virtual = adapter.virtual_tokens if adapter is not None else 0
    if trial.fails_at_length is not None and not trial.always_fails and not trial.not_finite:
        is_unlimited = subject.tokenizer is not None and subject.tokenizer.max_length is None
        is_within = positions is not None and trial.fails_at_length <= positions - virtual
        less = f" less the adapter's {virtual}" if virtual else ""
        limit = f"to the number of positions of the model{less}" if positions is None else f"= {positions - virtual}"
        allowed = "and the tokenizer sets no limit" if is_unlimited else "and the tokenizer allows it"
        yield this.find(
            # Who knows of it gives a max_length with each call; a limit that is too large misleads everybody.
            Severity.WARNING if is_unlimited and not is_within else Severity.ERROR,
            f"A text of {trial.fails_at_length:,} tokens fails, "
            f"{'although the model has as many positions' if is_within else allowed}: {trial.length_error}.",
            _REMEDY if is_within else f"Set tokenizer.model_max_length {limit}, and save the tokenizer.",
            code="" if is_within or positions is None else length_code(subject, positions - virtual),
        )


@rule("HS529", "run-without-cls", "The head reads [CLS], and the tokenizer adds none", needs=("run",), finds="W|E")
def run_without_cls(this: Rule, subject: Subject) -> Findings:
    """A head on the first token, and texts that don't begin with the tokenizer's own token for it."""
    head = head_of(subject)
    is_first = head.pooling.kind is PoolingKind.FIRST_TOKEN and not head.virtual_tokens
    if _run_of(subject).begins_with_cls is False and is_first:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.ERROR),
            "The head reads the first token. The tokenizer has a [CLS] token and doesn't put it there: the first word "
            "of each text takes its place.",
            "Use the training tokenizer, or restore the post_processor in tokenizer.json.",
        )


_CAUSES = {
    "HS521": ("HS301", "HS302", "HS304", "HS306", "HS307", "HS310", "HS529"),
    "HS522": ("HS501", "HS504"),
    "HS523": ("HS501", "HS504", "HS524", "HS527"),
    "HS524": ("HS504", "HS527"),
    "HS525": ("HS303", "HS304", "HS305", "HS306"),
    "HS528": ("HS307", "HS308"),
}
"""The rules on files and values that explain an effect."""


def looks_at_run(rules: Iterable[Rule]) -> bool:
    """True if one of some rules is about a run, or finds something else where the model ran."""
    return any("run" in item.needs or item.id in {*_FORESEES, "HS504"} for item in rules)


def with_causes(findings: Iterable[Finding], trial: RunTrial | None) -> list[Finding]:
    """Names in each effect of a run the rules that found its causes, with their remedies instead of the effect's."""
    found = list(findings)
    # A note is harmless, so it explains no effect.
    cures = {item.id: item.remedy for item in found if item.severity is not Severity.NOTE}
    named = {effect: [cause for cause in causes if cause in cures] for effect, causes in _CAUSES.items()}
    return [_add_causes(item, named[item.id], cures, trial) if named.get(item.id) else item for item in found]


def _add_causes(effect: Finding, causes: list[str], cures: Mapping[str, str], trial: RunTrial | None) -> Finding:
    # A cure of a batch was tried: the batch gave equal scores with it. The remedies of the causes were not.
    has_own_cure = effect.id == "HS525" and trial is not None and trial.batch_cure is not BatchCure.NONE
    remedy = effect.remedy if has_own_cure else " ".join(dict.fromkeys(cures[cause] for cause in causes))
    if has_own_cure and "HS306" in causes:  # two ids for one token: the other side would only hide it
        remedy = f"Cure HS306, and check again. If the scores still differ: {remedy[:1].lower()}{remedy[1:]}"
    message = f"{effect.message} Likely cause: {' and '.join(causes)}."
    return replace(effect, message=message, remedy=remedy, code="" if remedy != effect.remedy else effect.code)


_FORESEES = {
    "HS301": "batch", "HS302": "any", "HS303": "batch", "HS304": "batch", "HS305": "batch",
    "HS308": "length", "HS310": "single",
}  # fmt: skip
"""What a rule on files foresees. A run that looked there and saw nothing knows better; a note stays a note."""


def without_unseen(findings: Iterable[Finding], trial: RunTrial | None, positions: int | None) -> list[Finding]:
    """Drops errors and warnings that foresee an effect, if a run looked for the effect and didn't see it.

    `positions` is the number that the model has: a run that tried no longer text says nothing about such texts.
    """
    if trial is None or trial.scope.inputs == 0:
        return list(findings)
    batch = trial.batch_differs or bool(trial.batch_error)
    is_beyond = trial.longest is not None and (positions is None or trial.longest > positions)
    looked = {"single": True, "batch": batch or trial.batch_difference is not None, "length": is_beyond}
    seen = {"single": bool(trial.failed), "batch": batch, "length": trial.fails_at_length is not None}
    looked["any"], seen["any"] = looked["batch"], any(seen.values())
    return [
        item for item in findings
        if item.severity is Severity.NOTE or item.id not in _FORESEES
        or not looked[_FORESEES[item.id]] or seen[_FORESEES[item.id]]
    ]  # fmt: skip
