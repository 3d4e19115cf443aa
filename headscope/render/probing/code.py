"""A Python module with a classifier: which class to load, or which head to write."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headscope.facts.heads.head import PoolingKind
from headscope.facts.probing.data import Input, Loading
from headscope.facts.probing.result import Candidate, ProbeResult, Problem, Vector
from headscope.render.probing.code_media import (
    OWN_MEDIA_FORWARD,
    media_features,
    media_functions,
    media_imports,
    media_main,
    media_reading,
    reads_layer,
)
from headscope.render.probing.words import candidate_words, input_words

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
_STATES = (
    "        states = self.run(input_ids, attention_mask, token_type_ids, output_hidden_states=True).hidden_states\n"
)
_OF_LAYER = _STATES + "        mask = attention_mask.bool()\n" + "        return {call}\n"
_BODIES = {
    Vector.FIRST_TOKEN: ((_FIRST,), "first(states[LAYER], mask)"),
    Vector.MASKED_MEAN: ((_MEAN,), "mean(states[LAYER], mask)"),
    Vector.LAST_NON_PAD_TOKEN: ((_LAST,), "last(states[LAYER], mask)"),
    Vector.EOS_TOKEN: ((_LAST,), "last(states[LAYER], mask & (input_ids == self.end))"),
    Vector.MAX: ((_MAXIMUM,), "maximum(states[LAYER], mask)"),
    Vector.MEAN_AND_MAX: (
        (_MEAN, _MAXIMUM),
        "torch.cat([mean(states[LAYER], mask), maximum(states[LAYER], mask)], -1)",
    ),
    Vector.FIRST_LAST_MEAN: ((_MEAN,), "(mean(states[1], mask) + mean(states[-1], mask)) / 2"),
    Vector.LAST_FOUR_CONCAT: ((_FIRST,), "torch.cat([first(state, mask) for state in states[-4:]], -1)"),
    Vector.LAST_FOUR_AVERAGE: ((_FIRST,), "torch.stack([first(state, mask) for state in states[-4:]]).mean(0)"),
}
_POOLER = "        return self.run(input_ids, attention_mask, token_type_ids).pooler_output\n"

_TOKENIZER = '''
def load_tokenizer() -> Any:
    """The checkpoint's tokenizer, with padding on the side that is not read."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT, **LOADING)
    tokenizer.padding_side = "SIDE"
    if tokenizer.pad_token is None:  # one that ends no text: some heads read the last token that is not this one
        used, end = tokenizer("a")["input_ids"], tokenizer.eos_token_id
        spare = (place for place in (end, *range(len(tokenizer))) if place is not None and place not in used)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(next(spare))
    return tokenizer


def encode(tokenizer: Any, *columns: Sequence[str]) -> dict[str, torch.Tensor]:
    """Texts, or the first and the second texts of pairs, as one batch."""
    cut = {"truncation": True, "max_length": MAX_TOKENS} if MAX_TOKENS else {}
    lists = [list(column) for column in columns]
    return dict(tokenizer(*lists, padding=True, return_tensors="pt", return_attention_mask=True, **cut))
'''
_RUN = '''
    def run(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None,
        **options: bool,
    ) -> Any:
        """What the base model returns."""
        if token_type_ids is not None and "token_type_ids" in signature(self.base.forward).parameters:
            return self.base(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **options)
        return self.base(input_ids, attention_mask=attention_mask, **options)
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
        logits = self.classifier(self.features(input_ids, attention_mask, token_type_ids))
        return {"logits": logits} if labels is None else {"loss": LOSS(logits, labels), "logits": logits}
'''
_SIGNATURE = """
    def features(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
"""
_MEASURED = """\
        with torch.no_grad():
            size = self.eval().features(**encode(load_tokenizer(), EXAMPLE)).shape[-1]
        self.train()
"""
_OWN_HEAD = '''
class Classifier(nn.Module):
    """The class of the checkpoint, with its own head."""

    def __init__(self) -> None:
        super().__init__()
        names = dict(enumerate(LABELS))
        self.model = {model_class}.from_pretrained(
            CHECKPOINT,
            num_labels=len(LABELS),
            problem_type="{problem}",
            id2label=names,
            label2id={{name: place for place, name in names.items()}},
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            **LOADING,
        )
'''
_PAD = "        self.model.config.pad_token_id = load_tokenizer().pad_token_id\n"
_OWN_METHODS = '''
    def features(self, **inputs: torch.Tensor) -> torch.Tensor:
        """What the last linear layer of the head reads: for every token, in classes that pool the scores."""
        seen: list[torch.Tensor] = []
        layer = self.model.get_submodule(LAST_LAYER)
        hook = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        try:
            self(**inputs)
        finally:
            hook.remove()
        return seen[-1]
'''
_OWN_FORWARD = '''
    def forward(self, **inputs: torch.Tensor) -> Any:
        """The scores, and with labels the loss."""
        known = signature(self.model.forward).parameters
        return self.model(**{name: value for name, value in inputs.items() if name in known})
'''
_MAIN = '''
def train(
    model: Classifier, columns: Sequence[Sequence[str]], labels: Sequence[Any], epochs: int = 3, batch: int = 16,
    rate: float = 2e-5,
) -> float:
    """Trains all weights on labeled texts and returns the loss of the last batch. `columns` are as for `encode`."""
    tokenizer, optimizer = load_tokenizer(), torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    loss = torch.tensor(float("nan"))
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch):
            inputs = encode(tokenizer, *([column[row] for row in rows] for column in columns))
            loss = model(**inputs, labels=TARGETS)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    return loss.item()


if __name__ == "__main__":
    classifier = Classifier().eval()
    with torch.no_grad():
        scores = classifier(**encode(load_tokenizer(), EXAMPLE))["logits"]
    print(f"{type(classifier).__name__}: the scores have the shape {tuple(scores.shape)}; `train` trains it")
'''


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """What a module is written from: `origin` is its first sentence, `what` the vector in words.

    `layer` is the index of the hidden states, negative from the end; `size` None is measured when the module is built.
    `classifier` is the last layer of the class's own head, where the vector is the input of that head, and `pooling`
    says how that head pools; None if that is not known. `weights` is the file of a fitted classifier, "" for none.
    """

    origin: str
    what: str
    vector: Vector
    loading: Loading
    labels: tuple[str, ...]
    problem: Problem
    layer: int = -1
    size: int | None = None
    max_tokens: int | None = None
    classifier: str = ""
    pooling: PoolingKind | None = None
    weights: str = ""


def probe_code(result: ProbeResult) -> str:
    """The module that `probe` advises."""
    best = _advised(result)
    above = "The class of the checkpoint: `headscope probe` scored no vector above the input of its head."
    chosen = "A linear classifier on the vector that `headscope probe` scored best"
    is_head = best.pooling is Vector.HEAD
    return module_code(
        _facts_of(result, best, above if is_head else f"{chosen}: {candidate_words(best, input_words(result))}.")
    )


def fitted_code(result: ProbeResult, vector: Candidate, weights: str) -> str:
    """The module of a classifier on a vector that isn't the head's, whose fitted weights are in a file beside it."""
    what = candidate_words(vector, input_words(result))
    return module_code(
        replace(_facts_of(result, vector, f"A linear classifier that `headscope probe` fitted: {what}."),
                weights=weights)
    )  # fmt: skip


def _facts_of(result: ProbeResult, best: Candidate, origin: str) -> ModuleFacts:
    what = candidate_words(best, input_words(result))
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
    """The module; every name of a file or a class in it is a quoted Python string."""
    if facts.vector is Vector.HEAD:
        return "".join(_own_class(facts))
    return "".join((_custom_head if facts.loading.input is Input.TEXT else _custom_media_head)(facts))


def _advised(result: ProbeResult) -> Candidate:
    """The best candidate; the head's input where it has the same numbers, since its class is there already."""
    best = result.candidate(result.best)
    head = result.candidate(result.head) if result.head is not None else None
    return head if head is not None and head.same_as == best.name else best


def _custom_head(facts: ModuleFacts) -> Iterator[str]:
    functions, call = _BODIES.get(facts.vector, ((), ""))
    yield f'"""{facts.origin}"""\n'
    beside, fitted = ("from pathlib import Path\n", _SAFETENSORS) if facts.weights else ("", "")
    yield f"\nfrom collections.abc import Sequence\nfrom inspect import signature\n{beside}from typing import Any\n"
    yield f"\nimport torch\n{fitted}from torch import nn\nfrom transformers import AutoModel, AutoTokenizer\n\n"
    yield from _constants(facts)
    yield f"LAYER = {facts.layer}  # 0: the embeddings; -1: the last\n" if "LAYER" in call else ""
    yield f"LOSS = {_LOSSES[facts.problem]}\n\n"
    yield from (f"{function}\n" for function in functions)
    yield f"{_tokenizer(None)}\n"
    yield '\nclass Classifier(nn.Module):\n    """Scores of texts, from one vector of each."""\n\n'
    yield "    def __init__(self) -> None:\n        super().__init__()\n"
    yield "        base = AutoModel.from_pretrained(CHECKPOINT, dtype=torch.float32, **LOADING)\n"
    yield "        self.base = base.get_encoder() if base.config.is_encoder_decoder else base\n"
    yield "        self.end = load_tokenizer().eos_token_id\n" if facts.vector is Vector.EOS_TOKEN else ""
    yield _MEASURED if facts.size is None else ""
    yield f"        self.classifier = nn.Linear({facts.size or 'size'}, len(LABELS))\n{_fitted(facts)}"
    yield f'{_SIGNATURE}        """The vector of each text: {facts.what}."""\n'
    yield _POOLER if facts.vector is Vector.POOLER else _OF_LAYER.format(call=call)
    yield f"{_RUN}{_FORWARD}\n{_main(facts.problem)}"


_SAFETENSORS = "from safetensors.torch import load_file\n"


def _fitted(facts: ModuleFacts) -> str:
    """The line that loads the fitted classifier."""
    file = f"Path(__file__).with_name({facts.weights!r})"
    return f"        self.classifier.load_state_dict(load_file({file}))\n" if facts.weights else ""


def _custom_media_head(facts: ModuleFacts) -> Iterator[str]:
    """The module for images or sounds."""
    input, loading = facts.loading.input, facts.loading
    yield f'"""{facts.origin}"""\n'
    name = _class_name(loading)
    yield media_imports(input, name, is_fitted=bool(facts.weights))
    yield from _constants(facts)
    yield f"BASE = {loading.base!r}  # the part of the class that makes the hidden states\n" if loading.base else ""
    yield f"LAYER = {facts.layer}\n" if reads_layer(facts.vector) else ""
    yield f"LOSS = {_LOSSES[facts.problem]}\n\n"
    yield from (f"{function}\n" for function in media_functions(facts.vector))
    yield f"{media_reading(input)}\n"
    yield f'\nclass Classifier(nn.Module):\n    """Scores of {input.noun}s, from one vector of each."""\n\n'
    yield "    def __init__(self) -> None:\n        super().__init__()\n"
    yield f"        model = {name}.from_pretrained(\n"
    yield "            CHECKPOINT, ignore_mismatched_sizes=True, dtype=torch.float32, **LOADING\n        )\n"
    # `AutoModel` may load more: both towers of CLIP, or the decoder of Whisper, which need inputs that no file gives.
    yield f"        self.base = model{'.get_submodule(BASE)' if loading.base else ''}\n"
    yield f"        self.classifier = nn.Linear({facts.size}, len(LABELS))\n{_fitted(facts)}"
    title = f"The vector of each {input.noun}: {facts.what}."
    yield f"{media_features(facts.vector, title)}\n{media_main(facts.problem, _TARGETS[facts.problem])}"


_AUTO = {
    Input.TEXT: "AutoModelForSequenceClassification",
    Input.IMAGE: "AutoModelForImageClassification",
    Input.AUDIO: "AutoModelForAudioClassification",
}


def _class_name(loading: Loading) -> str:
    """The class to import: with code of the repository, no name of Transformers is that of the class."""
    return _AUTO[loading.input] if loading.remote_code else loading.model_class


def _own_class(facts: ModuleFacts) -> Iterator[str]:
    input, auto = facts.loading.input, _class_name(facts.loading)
    yield f'"""{facts.origin}"""\n'
    yield _text_imports(auto) if input is Input.TEXT else media_imports(input, auto)
    yield from _constants(facts)
    yield f"LAST_LAYER = {facts.classifier!r}\n"
    head = _OWN_HEAD.format(model_class=auto, problem=facts.problem.value)
    if input is Input.TEXT:
        yield f"\n{_tokenizer(facts.pooling)}\n{head}{_PAD}{_OWN_METHODS}{_OWN_FORWARD}\n{_main(facts.problem)}"
    else:
        yield f"LOSS = {_LOSSES[facts.problem]}\n\n{media_reading(input)}\n"
        yield f"{head}{_OWN_METHODS}{OWN_MEDIA_FORWARD}\n{media_main(facts.problem, _TARGETS[facts.problem])}"


def _tokenizer(pooling: PoolingKind | None) -> str:
    """The reading of texts; the last position is that of a text only where the padding is before it."""
    return _TOKENIZER.replace("SIDE", "left" if pooling is PoolingKind.LAST_TOKEN else "right")


def _text_imports(auto: str) -> str:
    names = ", ".join(sorted((auto, "AutoTokenizer")))
    return (
        "\nfrom collections.abc import Sequence\nfrom inspect import signature\nfrom typing import Any\n"
        f"\nimport torch\nfrom torch import nn\nfrom transformers import {names}\n\n"
    )


def _constants(facts: ModuleFacts) -> Iterator[str]:
    loading = facts.loading
    given = {"revision": loading.revision, "subfolder": loading.subfolder}
    options: dict[str, str | bool] = {name: value for name, value in given.items() if value}
    options |= {"trust_remote_code": True} if loading.remote_code else {}
    yield f"CHECKPOINT = {loading.reference!r}\n"
    yield f"LOADING: dict[str, Any] = {options!r}\n"
    yield f"LABELS = {facts.labels or ('value',)!r}\n"
    if loading.input is Input.TEXT:
        yield f"MAX_TOKENS: int | None = {facts.max_tokens}\n"
        yield 'EXAMPLE = ["A first text.", "A second, longer text."]\n'


def _main(problem: Problem) -> str:
    return _MAIN.replace("TARGETS", _TARGETS[problem])


_LOSSES = {
    Problem.SINGLE_LABEL: "nn.functional.cross_entropy",
    Problem.MULTI_LABEL: "nn.functional.binary_cross_entropy_with_logits",
    Problem.REGRESSION: "nn.functional.mse_loss",
}
_TARGETS = {
    Problem.SINGLE_LABEL: "torch.tensor([labels[row] for row in rows])",
    Problem.MULTI_LABEL: "torch.tensor([[float(mark) for mark in labels[row]] for row in rows])",
    Problem.REGRESSION: "torch.tensor([labels[row] for row in rows], dtype=torch.float32).reshape(len(rows), -1)",
}
