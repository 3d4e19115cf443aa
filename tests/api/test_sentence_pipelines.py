"""CrossEncoder, SparseEncoder and Dense layers of sentence-transformers: real saves, and what the library loads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import headscope
from headscope.facts import SentencePipeline
from tests.chains import save_chain
from tests.edits import edit_json, edit_tensors
from tests.scorers import save_encoder

library = pytest.importorskip("sentence_transformers")

ENCODERS = ("Bert", "Roberta", "DistilBert", "Electra")


def _pipeline(path: Path) -> SentencePipeline:
    pipeline = headscope.inspect(path).checkpoint.sentence_transformers
    assert pipeline is not None
    return pipeline


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize(("labels", "activation"), [(1, None), (3, None), (1, torch.nn.Identity())])
def test_a_cross_encoder_is_described_as_it_is_loaded(
    family: str, labels: int, activation: Any, tmp_path: Path
) -> None:
    save_encoder(family, "ForSequenceClassification", tmp_path / "plain", num_labels=labels)
    made = library.CrossEncoder(str(tmp_path / "plain"), activation_fn=activation, max_length=17)
    made.save_pretrained(str(tmp_path / "saved"))
    report = headscope.inspect(tmp_path / "saved")
    loaded = library.CrossEncoder(str(tmp_path / "saved"))
    pipeline = report.checkpoint.sentence_transformers
    assert pipeline.library_class == type(loaded).__name__ == "CrossEncoder"
    assert pipeline.activation == type(loaded.activation_fn).__name__
    assert pipeline.max_length == loaded.max_seq_length == 17
    assert pipeline.modules == tuple(type(module).__name__ for module in loaded)
    assert report.model.num_labels == loaded.num_labels == labels
    assert report.model.class_name == type(loaded[0].model).__name__
    assert not report.weights.new
    assert "HS401" not in [item.id for item in headscope.check(tmp_path / "saved", profile="inference").findings]


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1"}},
            "Identity",
        ),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "Sigmoid"),
    ],
)
def test_an_older_cross_encoder_leaves_its_activation_in_the_configuration(
    config: dict[str, Any], activation: str, tmp_path: Path
) -> None:
    save_encoder("Bert", "ForSequenceClassification", tmp_path, num_labels=1)
    edit_json(tmp_path / "config.json", config)
    pipeline = _pipeline(tmp_path)
    assert (pipeline.library_class, pipeline.activation, pipeline.modules) == ("CrossEncoder", activation, ())
    assert type(library.CrossEncoder(str(tmp_path)).activation_fn).__name__ == activation
    assert "not determined" not in str(headscope.inspect(tmp_path)).partition("pipeline")[2].partition("\n")[0]


def _dense(path: Path, family: str, mode: Any = "mean", **settings: Any) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import LayerNorm, Normalize, Pooling

    pooling = Pooling(16, mode)
    dense = Dense(pooling.get_embedding_dimension(), 8, **settings)
    save_chain(path / "saved", family, [pooling, dense, LayerNorm(8), Normalize()])


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"bias": False, "activation_function": torch.nn.GELU()}, {"use_residual": True}, {"mode": ["cls", "mean"]}],
    ids=["plain", "no-bias", "residual", "two-modes"],
)
def test_dense_layers_are_listed_with_the_tensors_that_the_library_loads(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    _dense(tmp_path, family, **settings)
    loaded = library.SentenceTransformer(str(tmp_path / "saved"))
    parts = _pipeline(tmp_path / "saved").parts
    assert [part.name for part in parts] == [type(module).__name__ for module in loaded]
    assert [part.fault for part in parts] == [""] * 5
    for part, module in zip(parts[2:], list(loaded)[2:], strict=True):
        theirs = {name: (tuple(item.shape), str(item.dtype)) for name, item in module.state_dict().items()}
        assert {item.name: (item.shape, f"torch.{item.dtype}") for item in part.weights} == theirs
    dense = loaded[2]
    assert (parts[2].input_size, parts[2].output_size) == (dense.in_features, dense.out_features)
    assert parts[2].detail.partition(",")[0] == type(dense.activation_function).__name__
    assert "residual" in parts[2].detail or not dense.use_residual
    assert "HS405" not in [item.id for item in headscope.check(tmp_path / "saved").findings]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.unlink(), "holds neither model.safetensors nor pytorch_model.bin"),
        (lambda file: edit_tensors(file, lambda state: {"linear.weight": state["linear.weight"]}), "lacks linear.bias"),
        (
            lambda file: edit_tensors(file, lambda state: state | {"linear.weight": torch.zeros(8, 15)}),
            "linear.weight as 8x15, and its settings say 8x16",
        ),
        (
            lambda file: edit_tensors(file, lambda state: state | {"more": torch.zeros(1)}),
            "has more, which the module does not",
        ),
        (lambda file: file.write_bytes(file.read_bytes()[:40]), "2_Dense/model.safetensors"),
        (
            lambda file: edit_json(file.with_name("config.json"), {"in_features": "16"}),
            "in_features in its settings is '16', not a size",
        ),
    ],
    ids=["no file", "no bias", "another shape", "one more tensor", "cut", "wrong settings"],
)
def test_a_dense_layer_that_the_library_cannot_load_is_an_error(spoil: Any, said: str, tmp_path: Path) -> None:
    _dense(tmp_path, "Bert")
    spoil(tmp_path / "saved" / "2_Dense" / "model.safetensors")
    with pytest.raises(Exception):  # noqa: B017 - the library raises what it likes, and that it raises is the point
        library.SentenceTransformer(str(tmp_path / "saved"))
    result = headscope.check(tmp_path / "saved")
    found = [item for item in result.findings if item.id == "HS405"]
    assert len(found) == 1
    assert said in found[0].message
    assert "2_Dense" in str(headscope.inspect(tmp_path / "saved")).partition("error")[2]


def test_weights_of_a_dense_layer_may_be_a_pickle(tmp_path: Path) -> None:
    _dense(tmp_path, "Bert")
    file = tmp_path / "saved" / "2_Dense" / "model.safetensors"
    torch.save(load_file(file), file.with_name("pytorch_model.bin"))
    file.unlink()
    part = _pipeline(tmp_path / "saved").parts[2]
    assert part.fault == ""
    assert {item.name: item.shape for item in part.weights} == {"linear.weight": (8, 16), "linear.bias": (8,)}
    library.SentenceTransformer(str(tmp_path / "saved"))


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_a_sparse_encoder_is_not_called_a_language_model(family: str, strategy: str, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    save_encoder(family, "ForMaskedLM", tmp_path / "plain")
    modules = [Transformer(str(tmp_path / "plain"), transformer_task="fill-mask"), SpladePooling(strategy)]
    library.SparseEncoder(modules=modules).save_pretrained(str(tmp_path / "saved"))
    loaded = library.SparseEncoder(str(tmp_path / "saved"))
    pipeline = _pipeline(tmp_path / "saved")
    assert pipeline.library_class == "SparseEncoder"
    assert pipeline.modules == tuple(type(module).__name__ for module in loaded)
    assert pipeline.parts[1].detail == f"{loaded[1].pooling_strategy} of log1p(relu)"
    found = {item.id: item.message for item in headscope.check(tmp_path / "saved", profile="inference").findings}
    assert "is a sparse encoder" in found["HS401"]
