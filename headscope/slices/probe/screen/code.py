"""Code of a Python module with a classifier, which loads a class or writes a new head."""

from collections.abc import Iterator
from dataclasses import replace

from headscope.core.facts.heads.head import PoolingKind
from headscope.core.facts.heads.tasks import Input
from headscope.slices.probe.facts.data import Loading
from headscope.slices.probe.facts.result import Candidate, ProbeResult, Vector
from headscope.slices.probe.screen.code_frame import INPUT_WORDS, ModuleFacts, module_end, module_start
from headscope.slices.probe.screen.code_media import FORWARD, MEDIA_BODIES, TOOLS, media_reading
from headscope.slices.probe.screen.source import literal
from headscope.slices.probe.screen.words import candidate_words

_FIRST = '''
def first(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The first token of each text."""
    return state[torch.arange(len(state), device=state.device), mask.int().argmax(1)]
'''
_LAST = '''
def last(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The last position of each text that the mask marks."""
    places = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    return state[torch.arange(len(state), device=state.device), places]
'''
_MEAN = '''
def mean(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of each text, without padding."""
    return state.masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True)
'''
_MAXIMUM = '''
def maximum(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The maximum over the tokens of each text, without padding."""
    return state.masked_fill(~mask[:, :, None], float("-inf")).amax(1)
'''
_BODIES = {
    Vector.FIRST_TOKEN: ((_FIRST,), "first(states[LAYER], mask)"),
    Vector.MASKED_MEAN: ((_MEAN,), "mean(states[LAYER], mask)"),
    Vector.LAST_NON_PAD_TOKEN: ((_LAST,), "last(states[LAYER], mask)"),
    Vector.EOS_TOKEN: ((_LAST,), 'last(states[LAYER], mask & (inputs["input_ids"] == self.end))'),
    Vector.MAX: ((_MAXIMUM,), "maximum(states[LAYER], mask)"),
    Vector.MEAN_AND_MAX: (
        (_MEAN, _MAXIMUM),
        "torch.cat([read(states[LAYER], mask) for read in (mean, maximum)], -1)",
    ),
    Vector.FIRST_LAST_MEAN: ((_MEAN,), "(mean(states[1], mask) + mean(states[-1], mask)) / 2"),
    Vector.LAST_FOUR_CONCAT: ((_FIRST,), "torch.cat([first(state, mask) for state in states[-4:]], -1)"),
    Vector.LAST_FOUR_AVERAGE: ((_FIRST,), "torch.stack([first(state, mask) for state in states[-4:]]).mean(0)"),
}
_TOKENIZER = '''
def load_tokenizer(folder: Path | None = None) -> Any:
    """The tokenizer of the checkpoint, or of a saved folder; padding isn't read."""
    source, options = (CHECKPOINT, LOADING) if folder is None else (folder, SAVED)
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    tokenizer.padding_side = "SIDE"
    if tokenizer.pad_token is None:
        # One that ends no text: some heads read the last token that is not this one.
        used, end = [None, *tokenizer("a")["input_ids"]], tokenizer.eos_token_id
        spare = (place for place in (end, *range(len(tokenizer))) if place not in used)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(next(spare))
    return tokenizer


def encode(tokenizer: Any, *columns: Sequence[str]) -> dict[str, torch.Tensor]:
    """Texts, or the first and the second texts of pairs, as one batch."""
    options = {"padding": True, "return_tensors": "pt", "return_attention_mask": True}
    cut = {"truncation": True, "max_length": MAX_TOKENS} if MAX_TOKENS else {}
    return dict(tokenizer(*(list(column) for column in columns), **options, **cut))
'''
_FORWARD = '''
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The scores, and with labels the loss: what `Trainer` takes."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
'''
_MEASURED = """\
        with torch.no_grad():
            size = self.eval().features(**encode(self.tokenizer, EXAMPLE)).shape[-1]
        self.train()
"""
_INIT = '''
class Classifier(nn.Module):
    """{title}"""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        settings = read_settings(folder)
        self.{tool} = load_{tool}(folder)
        self.labels = tuple(settings["labels"])
        if folder is None:
'''
_OWN_HEAD = """\
            names = dict(enumerate(LABELS))
            model = {model_class}.from_pretrained(
                CHECKPOINT,
                num_labels=len(LABELS),
                problem_type="{problem}",
                id2label=names,
                label2id={{name: place for place, name in names.items()}},
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
                **LOADING,
            )
{pad}        else:
            made = {model_class}.from_pretrained(
                folder,
                dtype=getattr(torch, settings["dtype"]),
                output_loading_info=True,
                **SAVED,
            )
            model, faults = made
            if any(faults.values()):
                raise RuntimeError(f"{{folder}} doesn't fit the class: {{faults}}")
        self.model = model
"""
_PAD = "            model.config.pad_token_id = self.tokenizer.pad_token_id\n"
_NEW_LAYER = """\
            model = {name}.from_pretrained(
                CHECKPOINT,
{options}                dtype=torch.float32,
                **LOADING,
            )
        else:
            config = AutoConfig.from_pretrained({config})
            model = {build}
        self.config = model.config
        self.base = model{part}
{end}{measured}        self.classifier = nn.Linear({size}, len(self.labels))
        if folder is not None:
            self.to(getattr(torch, settings["dtype"]))
            load_model(self, folder / "classifier.safetensors")
"""
_FITTED = """\
        else:
            weights = Path(__file__).with_name({})
            self.classifier.load_state_dict(load_file(weights))
"""
_FEATURES = '''
    def features(self, **inputs: torch.Tensor) -> torch.Tensor:
        """The vector of each {noun}: {what}."""
'''
_STATES = "        states = self.run(inputs, output_hidden_states=True).hidden_states\n"
_RUN = '''
    def run(self, inputs: dict[str, torch.Tensor], **options: bool) -> Any:
        """What the base model returns."""
        known = signature(self.base.forward).parameters
        taken = {k: inputs[k] for k in inputs if k in knownOTHERS}
        return self.base(**taken, **options)
'''
_RETURNED = """\
        loss = {} if labels is None else {"loss": LOSS(logits, labels)}
        return loss | {"logits": logits}
"""
_SCORES = f"""\
        logits = self.classifier(self.features(**inputs))
{_RETURNED}"""
_OWN_METHODS = '''
    def features(self, **inputs: torch.Tensor) -> torch.Tensor:
        """What the head's last linear layer reads: all tokens, if the scores are pooled."""
        seen: list[torch.Tensor] = []
        layer = self.model.get_submodule(LAST_LAYER)
        hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            self(**inputs)
        finally:
            hook.remove()
        return seen[-1]
'''
_OWN_SCORES = f"""\
        known = signature(self.model.forward).parameters
        taken = {{name: inputs[name] for name in inputs if name in known}}
        logits = self.model(**taken).logits
{_RETURNED}"""


def probe_code(result: ProbeResult) -> str:
    """Writes the module that `probe` advises."""
    best = result.candidate(result.best)
    head = result.candidate(result.head) if result.head is not None else None
    # The head's input wins over a vector with the same values: its class exists already, and nothing must be written.
    if head is not None and head.same_as == best.name:
        best = head
    above = "The class of the checkpoint: `headscope probe` scored no vector above the input of its head."
    chosen = "A linear classifier on the vector that `headscope probe` scored best"
    is_head = best.pooling is Vector.HEAD
    return module_code(_facts_of(result, best, above if is_head else f"{chosen}: {candidate_words(best, result)}."))


def fitted_code(result: ProbeResult, vector: Candidate, weights: str) -> str:
    """Writes the module of a classifier on another vector than the head's; the file `weights` holds its weights."""
    what = candidate_words(vector, result)
    facts = _facts_of(result, vector, f"A linear classifier that `headscope probe` fitted: {what}.")
    return module_code(replace(facts, weights=weights))


def _facts_of(result: ProbeResult, best: Candidate, origin: str) -> ModuleFacts:
    what = candidate_words(best, result)
    return ModuleFacts(
        origin=origin,
        what=what,
        vector=best.pooling,
        loading=result.loading or Loading(result.reference, None, None, "AutoModel"),
        labels=tuple(item.label for item in result.classes),
        problem=result.problem,
        layer=result.layers if best.layer is None else best.layer,
        size=best.size,
        max_tokens=result.numbers.max_tokens if result.numbers is not None else None,
        classifier=result.head_input.classifier if result.head_input is not None else "",
        pooling=PoolingKind(result.head_input.pooling) if result.head_input is not None else None,
    )


def module_code(facts: ModuleFacts) -> str:
    """Writes the module; every name of a file or a class in it is a quoted Python string."""
    return "".join((_own_class if facts.vector is Vector.HEAD else _custom_head)(facts))


def _custom_head(facts: ModuleFacts) -> Iterator[str]:
    """Writes the module with a new layer on a vector."""
    input, loading = facts.loading.input, facts.loading
    is_text = input is Input.TEXT
    functions, call = (_BODIES if is_text else MEDIA_BODIES).get(facts.vector, ((), ""))
    name = "AutoModel" if is_text else _class_name(loading)
    yield from module_start(facts, ("AutoConfig", TOOLS[input], name), has_layer="LAYER" in call)
    yield from (f"{function}\n" for function in functions)
    yield f"{_tokenizer_code(None) if is_text else media_reading(input)}\n"
    yield _INIT.format(title=f"Scores of {input.noun}s, from one vector of each.", tool=INPUT_WORDS[input]["tool"])
    # `AutoModel` may load more: both towers of CLIP, or the decoder of Whisper, which need inputs that no file gives.
    part = ".get_submodule(BASE)" if loading.base else ""
    part = ".get_encoder() if model.config.is_encoder_decoder else model" if is_text else part
    yield _NEW_LAYER.format(
        name=name,
        options="" if is_text else "                ignore_mismatched_sizes=True,\n",
        config="CHECKPOINT, **LOADING" if loading.remote_code else "folder",
        build=f"{name}.from_config(config, **SAVED)" if name.startswith("Auto") else f"{name}(config)",
        part=part,
        end="        self.end = self.tokenizer.eos_token_id\n" if facts.vector is Vector.EOS_TOKEN else "",
        measured=_MEASURED if facts.size is None else "",
        size=facts.size or "size",
    )
    yield _FITTED.format(literal(facts.weights)) if facts.weights else ""
    yield _FEATURES.format(noun=input.noun, what=facts.what)
    if facts.vector is Vector.POOLER:
        yield f"        return self.run(inputs).pooler_output{'' if is_text else '.flatten(1)'}\n"
    else:
        mask = '        mask = inputs["attention_mask"].bool()\n' if is_text else ""
        yield f"{_STATES}{mask}        return {call}\n"
    run = _RUN.replace("OTHERS", ' or k != "token_type_ids"' if is_text else "")
    yield f"{run}{_FORWARD if is_text else FORWARD}{_SCORES}{module_end(facts)}"


_AUTO = {
    Input.TEXT: "AutoModelForSequenceClassification",
    Input.IMAGE: "AutoModelForImageClassification",
    Input.AUDIO: "AutoModelForAudioClassification",
}


def _class_name(loading: Loading) -> str:
    """Gives the class to import: an auto class if the class is in code of the repository, not in Transformers."""
    return _AUTO[loading.input] if loading.remote_code else loading.model_class


def _own_class(facts: ModuleFacts) -> Iterator[str]:
    input, auto = facts.loading.input, _class_name(facts.loading)
    is_text = input is Input.TEXT
    yield from module_start(facts, (TOOLS[input], auto), has_layer=False)
    yield f"{_tokenizer_code(facts.pooling) if is_text else media_reading(input)}\n"
    yield _INIT.format(title="The class of the checkpoint, with its own head.", tool=INPUT_WORDS[input]["tool"])
    yield _OWN_HEAD.format(model_class=auto, problem=facts.problem.value, pad=_PAD if is_text else "")
    yield f"{_OWN_METHODS}{FORWARD}{_OWN_SCORES}{module_end(facts)}"


def _tokenizer_code(pooling: PoolingKind | None) -> str:
    """Writes the code that reads texts.

    A head that reads the last position needs padding on the left: otherwise it would read a pad token.
    """
    return _TOKENIZER.replace("SIDE", "left" if pooling is PoolingKind.LAST_TOKEN else "right")
