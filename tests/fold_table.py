"""Kinds of folds: what scored before, and what each engine gives for the folded folder.

`python -m tests.fold_table [ENGINE[=PYTHON] ...]` prints the rows of the table in docs/edit.md; without an engine, the
result runs in Transformers or sentence-transformers.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import nn

import headscope
from headscope.copies.facts import EditVerdict
from headscope.core.model.quiet import quiet
from headscope.errors import HeadscopeError
from headscope.shared.serving.running.process import EngineInput, InputBatch, run_engine
from tests.chains import save_base, save_chain
from tests.scorers import WORDS, save_tokenizer

Input = tuple[str, ...]
"""A text or a pair."""
TEXTS: list[Input] = [("w1 w2 w3",), ("no w7",), ("w11 w12 w13 w14 w15 w16 w17 w18",), ("yes w90 w2",)]
PAIRS: list[Input] = [("w1 w2 w3", "w4"), ("w5", "w6 w7 w8 w9 w10"), ("w11 w12", "w13 w14"), ("w80 yes", "no")]
_WIDTH = 64
_SIZES: dict[str, Any] = {"hidden_size": _WIDTH, "head_dim": 32, "dim": _WIDTH}
_LIBRARY, _PIPELINE = "sentence-transformers", "transformers-pipeline"
_ENGINES = (_LIBRARY, _PIPELINE, "onnx-runtime", "transformers-js", "vllm")


@dataclass(frozen=True)
class Kind:
    """A kind of fold: the head before, how its source is made and scored, and the options of `edit`."""

    family: str
    head: str
    save: Callable[[Path], None]
    score: Callable[[Path, list[Input]], torch.Tensor]
    options: dict[str, Any]
    engines: tuple[str, ...] = _ENGINES
    """Those that can run the result."""
    prompt: Callable[[Path, Input], tuple[int, ...]] | None = None
    """The token IDs of a pair, where the library asks a language model in its own prompt."""
    inputs: tuple[Input, ...] = (*TEXTS, *PAIRS)
    function: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone
    """What makes the source's scores of those of the result."""


@dataclass(frozen=True)
class Folded:
    """A folded checkpoint, and the scores that its source's own library gave for the inputs."""

    kind: Kind
    report: Any
    items: list[EngineInput]
    scores: torch.Tensor

    def apart(self, engine: str, python: str | None = None) -> tuple[float, str]:
        """The largest difference of an engine's scores: of inputs alone, and of pairs in a padded batch."""
        pairs = tuple(item for item in self.items if item.pair is not None)
        batches = [InputBatch("alone", (item,)) for item in self.items]
        batches += [InputBatch("padded", pairs, padding="right")] if pairs else []
        with TemporaryDirectory() as scratch:
            answer = run_engine(engine, Path(self.report.output), Path(scratch), batches, python)
        errors = [answer.error, *(batch.error for batch in answer.batches)]
        assert not any(errors), next(filter(None, errors))
        found = self.kind.function(torch.cat([torch.as_tensor(batch.scores) for batch in answer.batches]))
        wanted = torch.cat([self.scores, self.scores[len(self.scores) - len(pairs) :]]).double()
        assert found.shape == wanted.shape and wanted.std(0).min() > 0.01, (found, wanted)
        return float((found - wanted).abs().max()), answer.version


def fold(kind: Kind, place: Path) -> Folded:
    """Makes a source, has its own library score the inputs, and folds it."""
    source = place / "source"
    with quiet():
        kind.save(source)
        inputs = list(kind.inputs)
        scores = kind.score(source, inputs)
        ids = [kind.prompt(source, item) if kind.prompt else None for item in inputs]
    report = headscope.edit(source, place / "folded", **kind.options)
    assert report.verdict is EditVerdict.PROVEN, report.proof.reason
    items = [
        EngineInput(item[0], item[1] if len(item) > 1 else None, row) for item, row in zip(inputs, ids, strict=True)
    ]
    return Folded(kind, report, items, scores)


def _save_modules(family: str, pooling: str, layers: Sequence[tuple[Any, ...]], folder: Path) -> None:
    """A CrossEncoder of linear layers (size, function, bias) and norms ()."""
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling

    after: list[nn.Module] = [Pooling(_WIDTH, pooling_mode=pooling)]
    width = _WIDTH
    for at, layer in enumerate(layers, 1):
        if not layer:
            after.append(LayerNorm(width))
            continue
        size, function, has_bias = layer
        options = {"module_output_name": "scores"} if at == len(layers) else {}
        after.append(Dense(width, size, bias=has_bias, activation_function=function, **options))
        width = size
    save_chain(folder, family, after, sizes=_SIZES)


def _save_reranker(folder: Path) -> None:
    from sentence_transformers import CrossEncoder

    save_base("Qwen3", folder.parent / "plain", kind=_LM, **_SIZES)
    CrossEncoder(str(folder.parent / "plain")).save_pretrained(str(folder))


def _save_value_head(folder: Path) -> None:
    from trl.experimental.ppo import AutoModelForCausalLMWithValueHead

    save_base("Qwen3", folder.parent / "plain", kind=_LM, **_SIZES)
    model = AutoModelForCausalLMWithValueHead.from_pretrained(str(folder.parent / "plain"))
    nn.init.normal_(model.v_head.summary.weight, 0, 0.5)
    nn.init.zeros_(model.v_head.summary.bias)
    model.save_pretrained(str(folder))
    save_tokenizer(folder)


def _save_setfit(classes: int, folder: Path, *, normalizes: bool = False) -> None:
    import numpy
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from setfit import SetFitModel
    from sklearn.linear_model import LogisticRegression

    save_base("Bert", folder.parent / "plain", **_SIZES)
    modules = [Transformer(str(folder.parent / "plain")), Pooling(_WIDTH, pooling_mode="mean")]
    body = SentenceTransformer(modules=modules)
    vectors = body.encode([f"w{at} w{at + 1} w{7 * at % 90}" for at in range(30)], normalize_embeddings=normalizes)
    head = LogisticRegression(C=100.0, max_iter=1000).fit(vectors, numpy.arange(30) % classes)
    head.coef_ = numpy.asfortranarray(head.coef_)  # as some solvers leave it
    names = ["bad", "good", "fine"][:classes]
    made = SetFitModel(model_body=body, model_head=head, labels=names, normalize_embeddings=normalizes)
    made.save_pretrained(str(folder))


def _setfit_probabilities(folder: Path, inputs: list[Input]) -> torch.Tensor:
    from setfit import SetFitModel

    model = SetFitModel.from_pretrained(str(folder))
    return torch.as_tensor(model.predict_proba([text for (text,) in inputs], as_numpy=True))


def _cross_encoder_scores(folder: Path, inputs: list[Input]) -> torch.Tensor:
    from sentence_transformers import CrossEncoder

    encoder = CrossEncoder(str(folder), device="cpu")
    options: Any = {"activation_fn": nn.Identity(), "convert_to_tensor": True}
    return torch.stack([encoder.predict(item if len(item) > 1 else item[0], **options).reshape(-1) for item in inputs])


def _prompt_of_reranker(folder: Path, item: Input) -> tuple[int, ...]:
    from sentence_transformers import CrossEncoder

    return tuple(CrossEncoder(str(folder), device="cpu").preprocess([item])["input_ids"][0].tolist())


def _class_scores(auto: str, read: Callable[[Any], torch.Tensor], folder: Path, inputs: list[Input]) -> torch.Tensor:
    """What is read in the output of a class of Transformers, or of TRL, each input alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if auto == _VALUES:
        from trl.experimental import ppo
    cls: Any = getattr(ppo if auto == _VALUES else transformers, auto)
    model = cls.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        return torch.cat([read(model(**tokenizer(*item, return_tensors="pt"))) for item in inputs])


_CLASS, _LM, _VALUES = "ForSequenceClassification", "ForCausalLM", "AutoModelForCausalLMWithValueHead"
_NO, _YES = WORDS.index("no"), WORDS.index("yes")
_LOGITS = partial(_class_scores, f"AutoModel{_CLASS}", lambda output: output.logits)
_BOTH = partial(_class_scores, f"AutoModel{_LM}", lambda output: output.logits[:, -1, [_NO, _YES]])
_DIFFERENCE = partial(_class_scores, f"AutoModel{_LM}", lambda output: output.logits[:, -1, [_NO, _YES]].diff())
_AUTO: dict[str, Any] = {"as_class": "auto"}


def _modules(family: str, head: str, pooling: str, *layers: tuple[Any, ...]) -> Kind:
    return Kind(family, head, partial(_save_modules, family, pooling, layers), _cross_encoder_scores, _AUTO)


def _rows(family: str, scores: int) -> Kind:
    options = _AUTO | {"tokens": "no,yes", "scores": scores}
    save = partial(save_base, family, kind=_LM, **_SIZES)
    return Kind(family, "yes - no" if scores == 1 else "no, yes", save, _DIFFERENCE if scores == 1 else _BOTH, options)


def _setfit(classes: int, *, normalizes: bool) -> Kind:
    name = f"SetFit, {classes} classes{', normalized' * normalizes}"
    save = partial(_save_setfit, classes, normalizes=normalizes)
    engines, softmax = (_LIBRARY,), partial(torch.softmax, dim=1)
    return Kind("Bert", name, save, _setfit_probabilities, {"as_class": "chain"}, engines, None, tuple(TEXTS), softmax)


def _to_modules(family: str, classes: int) -> Kind:
    save = partial(save_base, family, kind=_CLASS, num_labels=classes, **_SIZES)
    return Kind(family, f"{family}{_CLASS}", save, _LOGITS, {"as_class": "chain"}, (_LIBRARY,))


_SCORE = nn.Identity()
_RERANKER = Kind(
    "Qwen3", "LogitScore", _save_reranker, _cross_encoder_scores, _AUTO, ("onnx-runtime", "transformers-js", "vllm"),
    _prompt_of_reranker, tuple(PAIRS),
)  # fmt: skip
_VALUE = Kind(
    "Qwen3",
    "value_head of TRL",
    _save_value_head,
    partial(_class_scores, _VALUES, lambda output: output[2][:, -1:]),
    _AUTO,
)
KINDS = [
    _modules("ModernBert", "mean, Dense (GELU), norm, Dense", "mean", (64, nn.GELU(), False), (), (1, _SCORE, True)),
    _modules("ModernBert", "first, Dense (ReLU), norm, Dense", "cls", (64, nn.ReLU(), True), (), (3, _SCORE, True)),
    _modules("Bert", "first, Dense (tanh), Dense", "cls", (64, nn.Tanh(), True), (1, _SCORE, True)),
    _modules("Bert", "the same, one more Dense", "cls", (64, nn.Tanh(), True), (8, _SCORE, True), (3, _SCORE, True)),
    _modules("XLMRoberta", "first, Dense (tanh), Dense", "cls", (64, nn.Tanh(), True), (1, _SCORE, True)),
    _modules("DistilBert", "first, Dense (ReLU), Dense", "cls", (64, nn.ReLU(), True), (2, _SCORE, True)),
    _modules("Electra", "first, Dense (GELU), Dense", "cls", (64, nn.GELU(), True), (4, _SCORE, True)),
    _modules("Qwen3", "last, Dense", "lasttoken", (1, _SCORE, False)),
    _RERANKER, _rows("Qwen3", 1), _rows("Llama", 2), _rows("Gemma", 1), _VALUE,
    *(_to_modules(family, count) for family, count in (("Bert", 3), ("Roberta", 3), ("ModernBert", 1))),
    _setfit(3, normalizes=False), _setfit(2, normalizes=True),
]  # fmt: skip


def main(engines: list[str]) -> None:
    """Prints the rows of the table: the engines' differences, or why there is none."""
    given = dict(item.partition("=")[::2] for item in engines)
    for kind in KINDS:
        with TemporaryDirectory() as place:
            cells = []
            try:
                folded = fold(kind, Path(place))
                cells = [f"{folded.report.fold.max_difference:.1e}"]
            except (AssertionError, HeadscopeError, ImportError) as err:
                print(f"| {kind.family}: {kind.head} | {err} |", flush=True)
                continue
            for engine, python in given.items():
                try:
                    apart, version = folded.apart(engine, python or None) if engine in kind.engines else (None, "")
                    cells.append("" if apart is None else f"{apart:.1e} ({version})")
                except (AssertionError, HeadscopeError) as err:
                    cells.append(str(err)[:160])
            print(f"| {kind.family}: {kind.head} | {folded.report.model_class} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
