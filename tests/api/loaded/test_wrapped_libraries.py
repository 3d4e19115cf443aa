"""Models in memory inside other libraries: the scores that are described are those that the library's object gives."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import headscope
from headscope.core.facts.report import LoadVerdict
from headscope.core.facts.verdict import Verdict
from headscope.errors import HeadNotLoaded, Unsupported, UsageError
from headscope.facts import PoolingKind
from tests.chains import save_base
from tests.scorers import save_language_model, save_tokenizer

H = 16
TOKENS = {"input_ids": torch.randint(6, 90, (3, 7)), "attention_mask": torch.ones(3, 7, dtype=torch.long)}
TOKENS["attention_mask"][0, 4:] = 0
TEXTS = ["w1 w2 w3", "w4 w5", "w6 w7 w8 w9"]


def saved(folder: Path, kind: str = "ForSequenceClassification", **settings: Any) -> str:
    save_base("Bert", folder, kind=kind, **settings)
    return str(folder)


@pytest.fixture
def base(tmp_path: Path) -> str:
    return saved(tmp_path / "base", "Model")


@pytest.fixture
def classifier(tmp_path: Path) -> str:
    return saved(tmp_path / "classifier", num_labels=3)


def close(shown: Any, wanted: Any) -> bool:
    values = torch.as_tensor(wanted, dtype=torch.float32).detach()
    return torch.allclose(torch.tensor(shown.logits), values.reshape(len(shown.logits), -1), atol=1e-5)


def as_if_trained(module: nn.Module) -> None:
    """Weights that no initialization draws."""
    with torch.no_grad():
        for item in module.parameters():
            item.mul_(1 + torch.rand_like(item))


def sentence_model(base: str, *more: str) -> Any:
    library = pytest.importorskip("sentence_transformers")
    models = importlib.import_module("sentence_transformers.models")
    made = [models.Transformer(base), models.Pooling(H, pooling_mode="mean")]
    if "dense" in more:
        made.append(models.Dense(H, 8))
    if "normalize" in more:
        made.append(models.Normalize())
    return library.SentenceTransformer(modules=made, device="cpu").eval()


@pytest.mark.parametrize(
    ("more", "formula"),
    [
        ((), "logits = mean(h[non-pad])"),
        (("normalize",), "logits = normalize(mean(h[non-pad])"),
        (("dense", "normalize"), "logits = normalize(tanh(linear(mean(h[non-pad])))"),
    ],
)
def test_the_modules_after_an_encoder_are_its_head(more: tuple[str, ...], formula: str, base: str) -> None:
    model = sentence_model(base, *more)
    report, shown = headscope.inspect(model), headscope.forward(model, example_inputs=TOKENS)
    assert report.head.formula.startswith(formula)
    assert report.head.pooling.kind is PoolingKind.MASKED_MEAN
    assert report.model.class_name == "SentenceTransformer"
    assert (report.model.num_labels, report.model.labels) == (0, ())
    assert "an embedding" in " ".join(str(report).split())
    assert {item.name: item.shape for item in report.weights.parameters if not item.is_buffer} == {
        name: tuple(item.shape) for name, item in model.named_parameters()
    }
    own = {item.name: item.status.value for item in report.head.parameters}
    assert own == ({"2.linear.weight": "unknown", "2.linear.bias": "unknown"} if "dense" in more else {})
    inside = [item for item in report.weights.parameters if item.name.startswith("0.") and not item.is_buffer]
    assert {item.status.value for item in inside} == {"loaded"}
    assert close(shown, model(dict(TOKENS))["sentence_embedding"])
    verdict = headscope.check(model, "inference").verdict
    assert verdict is (Verdict.FAILED if "dense" in more else Verdict.PASSED)  # as PyTorch drew it
    if "dense" in more:
        as_if_trained(model[2])
        assert headscope.check(model, "inference").verdict is Verdict.NOT_DETERMINED


def test_a_sparse_encoder_gives_its_own_vector(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SparseEncoder(saved(tmp_path, "ForMaskedLM"), device="cpu").eval()
    report, shown = headscope.inspect(model), headscope.forward(model, example_inputs=TOKENS)
    assert (report.model.class_name, report.head.pooling.kind) == ("SparseEncoder", PoolingKind.MAX)
    assert close(shown, model(dict(TOKENS))["sentence_embedding"])


@pytest.mark.parametrize(("labels", "activation"), [(1, "sigmoid"), (3, "none")])
def test_a_cross_encoder_puts_its_own_function_on_the_scores(labels: int, activation: str, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.CrossEncoder(saved(tmp_path, num_labels=labels), device="cpu")
    pairs = [("w1 w2", "w3"), ("w4", "w5 w6"), ("w7", "w8")]
    inputs = dict(model.tokenizer([a for a, _ in pairs], [b for _, b in pairs], return_tensors="pt", padding=True))
    report, shown = headscope.inspect(model), headscope.forward(model, example_inputs=inputs)
    assert report.model.wrappers == ("CrossEncoder",)
    assert (report.model.class_name, report.model.activation) == ("BertForSequenceClassification", activation)
    assert report.head.formula == headscope.inspect(model[0].model).head.formula
    wanted = torch.as_tensor(model.predict(pairs)).reshape(3, -1)
    names = report.model.labels
    chances = [[{item.label: item.probability for item in row.scores}[name] for name in names] for row in shown.scored]
    assert torch.allclose(torch.tensor(chances), wanted, atol=1e-5)
    assert not [item for item in headscope.check(model).findings if item.id == "HS205"]


def test_another_function_is_named_and_gives_no_probability(classifier: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.CrossEncoder(classifier, device="cpu", activation_fn=nn.Tanh())
    assert headscope.inspect(model).model.activation == "tanh"
    scored = headscope.forward(model, example_inputs=TOKENS).scored
    assert {item.probability for row in scored for item in row.scores} == {None}


@pytest.mark.parametrize(("no", "formula"), [(4, "lm_head[5](h[-1]) - lm_head[4](h[-1])"), (None, "lm_head[5](h[-1])")])
def test_a_cross_encoder_of_a_language_model_scores_by_rows(no: int | None, formula: str, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.cross_encoder.modules")
    save_language_model("Qwen3", tmp_path)
    inner = importlib.import_module("sentence_transformers.models").Transformer(
        str(tmp_path), transformer_task="text-generation"
    )
    model = library.CrossEncoder(modules=[inner, modules.LogitScore(5, no)], device="cpu").eval()
    report, shown = headscope.inspect(model), headscope.forward(model, example_inputs=TOKENS)
    assert report.head.formula == f"logits = {formula}"
    assert (report.model.num_labels, report.model.labels, report.model.activation) == (1, (), "sigmoid")
    assert close(shown, model(dict(TOKENS))["scores"])
    assert not [item for item in headscope.check(model).findings if item.id == "HS303"]  # it pads on the left


def setfit_model(base: str, **more: Any) -> Any:
    library = pytest.importorskip("setfit")
    return library.SetFitModel(model_body=sentence_model(base), **more)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_setfit_with_a_fitted_classifier(classes: int, normalized: bool, base: str) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    names = ["neg", "pos", "mixed"][:classes]
    head = linear.LogisticRegression()
    model = setfit_model(base, model_head=head, normalize_embeddings=normalized)
    head.fit(torch.randn(30, H).numpy(), [names[at % classes] for at in range(30)])
    report = headscope.inspect(model)
    assert report.model.labels == tuple(sorted(names))
    assert report.model.activation == ("sigmoid" if classes == 2 else "softmax")
    assert {item.name: item.shape for item in report.head.parameters} == {
        "model_head.coef_": head.coef_.shape, "model_head.intercept_": head.intercept_.shape,
    }  # fmt: skip
    assert ("normalize" in report.head.formula) == normalized
    inputs = dict(model.model_body.tokenizer(TEXTS, return_tensors="pt", padding=True))
    shown = headscope.forward(model, example_inputs=inputs)
    assert close(shown, head.decision_function(model.encode(TEXTS)))
    scores = torch.tensor(shown.logits)
    chances = scores.softmax(-1) if classes > 2 else torch.cat([1 - scores.sigmoid(), scores.sigmoid()], -1)
    assert torch.allclose(chances.double(), torch.as_tensor(model.predict_proba(TEXTS)).double(), atol=1e-5)
    assert headscope.check(model, "inference").verdict is Verdict.NOT_DETERMINED
    assert not [item for item in headscope.check(model).findings if item.id == "HS601"]


def test_setfit_with_a_head_of_pytorch(base: str) -> None:
    library = pytest.importorskip("setfit")
    head = library.SetFitHead(in_features=H, out_features=3, device="cpu")
    model = setfit_model(base, model_head=head, labels=["a", "b", "c"])
    report = headscope.inspect(model)
    assert (report.model.labels, report.model.activation) == (("a", "b", "c"), "softmax")
    inputs = dict(model.model_body.tokenizer(TEXTS, return_tensors="pt", padding=True))
    shown = headscope.forward(model, example_inputs=inputs)
    chances = [[{item.label: item.probability for item in row.scores}[name] for name in "abc"] for row in shown.scored]
    assert torch.allclose(torch.tensor(chances), model.predict_proba(TEXTS), atol=1e-5)


def test_a_head_of_setfit_that_is_not_linear_is_refused(base: str) -> None:
    forest = pytest.importorskip("sklearn.neighbors").KNeighborsClassifier()
    linear = pytest.importorskip("sklearn.linear_model").LogisticRegression()
    with pytest.raises(Unsupported, match="KNeighborsClassifier"):
        headscope.check(setfit_model(base, model_head=forest))
    with pytest.raises(UsageError, match="not fitted"):
        headscope.inspect(setfit_model(base, model_head=linear))


def value_model(folder: Path) -> Any:
    trl = pytest.importorskip("trl")
    save_language_model("Qwen3", folder)
    cls = getattr(trl, "AutoModelForCausalLMWithValueHead", None)
    if cls is None:
        cls = pytest.importorskip("trl.experimental.ppo").AutoModelForCausalLMWithValueHead
    return cls.from_pretrained(str(folder)).eval()


def test_a_value_head_gives_one_score_for_each_token(tmp_path: Path) -> None:
    model = value_model(tmp_path)
    report, shown = headscope.inspect(model), headscope.forward(model, example_inputs=TOKENS)
    assert report.head.formula == "logits = summary(h)"
    assert [(item.name, item.shape) for item in report.head.parameters] == [
        ("v_head.summary.weight", (1, H)), ("v_head.summary.bias", (1,)),
    ]  # fmt: skip
    assert (report.model.num_labels, report.model.labels) == (1, ())
    value = model(**TOKENS)[2]
    assert shown.logits_shape == tuple(value.shape)
    assert close(shown, value)
    assert headscope.check(model, "inference").verdict is Verdict.NOT_DETERMINED
    wrapped = headscope.inspect(nn.DataParallel(model))
    assert wrapped.model.wrappers == ("DataParallel",)
    assert wrapped.head == report.head


def test_a_saved_value_head_gives_what_trl_computes(tmp_path: Path) -> None:
    model = value_model(tmp_path / "plain")
    model.save_pretrained(tmp_path / "saved")
    tokenizer = save_tokenizer(tmp_path / "saved")
    assert headscope.inspect(tmp_path / "saved").verdict is LoadVerdict.COMPLETE
    shown = headscope.forward(tmp_path / "saved", device="cpu", text=["w1 w3 w5"])
    value = model(**tokenizer(["w1 w3 w5"], return_tensors="pt"))[2]
    assert torch.allclose(torch.tensor(shown.logits).squeeze(-1), value, atol=1e-5)


def lightning_modules(classifier: str, base: str) -> dict[str, Any]:
    lightning = pytest.importorskip("lightning")

    class Passing(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertForSequenceClassification.from_pretrained(classifier)

        def forward(self, **inputs: Any) -> Any:
            return self.model(**inputs)

    class Stepping(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = transformers.BertForSequenceClassification.from_pretrained(classifier)

    class Changing(Passing):
        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits.softmax(-1)

    class Heading(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.backbone = transformers.BertModel.from_pretrained(base)
            self.head = nn.Linear(H, 3)

        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return self.head(self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0])

    class Headless(Heading):
        forward = lightning.LightningModule.forward

    return {cls.__name__: cls().eval() for cls in (Passing, Stepping, Changing, Heading, Headless)}


def test_a_lightning_module_shows_what_its_forward_gives(classifier: str, base: str) -> None:
    made = lightning_modules(classifier, base)
    plain = headscope.inspect(made["Stepping"].net)
    for name in ("Passing", "Stepping"):
        report = headscope.inspect(made[name])
        assert (report.model.wrappers, report.head) == ((name,), plain.head)
        assert headscope.check(made[name], "inference").verdict is Verdict.PASSED
    changing = headscope.inspect(made["Changing"])
    assert changing.head.formula == "logits = softmax(classifier(tanh(dense(h[CLS]))))"
    assert (changing.model.wrappers, changing.model.class_name) == ((), "Changing")
    heading = headscope.inspect(made["Heading"])
    assert {item.name: item.status.value for item in heading.head.parameters} == {
        "head.weight": "unknown", "head.bias": "unknown",
    }  # fmt: skip
    assert headscope.check(made["Heading"], "inference").verdict is Verdict.FAILED  # as PyTorch drew it
    as_if_trained(made["Heading"].head)
    assert headscope.check(made["Heading"], "inference").verdict is Verdict.NOT_DETERMINED
    for name in ("Passing", "Changing", "Heading"):
        returned = made[name](**TOKENS)
        wanted = returned if isinstance(returned, torch.Tensor) else returned.logits
        assert close(headscope.forward(made[name], example_inputs=TOKENS), wanted)
    with pytest.raises(Unsupported, match="Headless"):
        headscope.inspect(made["Headless"])


def _reward_trainer(folder: str, out: Path) -> Any:
    trl, rows = pytest.importorskip("trl"), [{"chosen": "w1 w2", "rejected": "w3 w4"}] * 4
    settings = trl.RewardConfig(output_dir=str(out), report_to="none", use_cpu=True)
    data = pytest.importorskip("datasets").Dataset.from_list(rows)
    return trl.RewardTrainer(folder, args=settings, train_dataset=data)


LOADS = {
    "a CrossEncoder": lambda folder, _: importlib.import_module("sentence_transformers").CrossEncoder(folder),
    "a CrossEncoder of one score": lambda folder, _: importlib.import_module("sentence_transformers").CrossEncoder(
        folder, num_labels=1
    ),
    "a pipeline": lambda folder, _: transformers.pipeline("text-classification", folder),
    "TRL's trainer of rewards": _reward_trainer,
}


@pytest.mark.parametrize("load", LOADS)
def test_a_library_that_draws_a_head_is_stopped_inside_strict(load: str, base: str, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    saved(tmp_path / "whole", num_labels=1)
    with pytest.raises(HeadNotLoaded, match="classifier") as caught, headscope.strict():
        LOADS[load](base, tmp_path / "out")
    assert set(caught.value.parameters) == {"classifier.weight", "classifier.bias"}
    with headscope.strict():
        LOADS[load](str(tmp_path / "whole"), tmp_path / "out")
    with headscope.strict(allow="classifier"):
        LOADS[load](base, tmp_path / "out")
