"""SetFit's `model_head.pkl`: read without executing it, held against scikit-learn; hostile ones are refused."""

import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.checkpoints.formats.pickle.scikit_pickle import read_linear_classifier, read_pickled_head
from headscope.errors import Malformed, Unsupported
from headscope.facts import PickledHead

LABELS = {
    "integers": [0, 1, 2],
    "texts": ["negative", "neutral", "positive"],
    "two": ["no", "yes"],
    "others": ["ä", "日本", ""],
}


def _read(path: Path) -> PickledHead:
    return read_pickled_head(LocalBytes(path, path.name))


def _fitted(labels: list[Any], dtype: str, as_objects: bool = False) -> tuple[Any, Any]:
    numpy, linear = pytest.importorskip("numpy"), pytest.importorskip("sklearn.linear_model")
    features = numpy.random.default_rng(0).standard_normal((30, 8)).astype(dtype)
    targets = numpy.array([labels[at % len(labels)] for at in range(30)], dtype=object if as_objects else None)
    return linear.LogisticRegression().fit(features, targets), features


@pytest.mark.parametrize("labels", LABELS.values(), ids=list(LABELS))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("as_objects", [False, True])
def test_a_logistic_regression_is_read_as_scikit_learn_made_it(
    labels: list[Any], dtype: str, as_objects: bool, tmp_path: Path
) -> None:
    joblib = pytest.importorskip("joblib")
    if as_objects and not isinstance(labels[0], str):
        labels = list(map(str, labels))
    made, features = _fitted(labels, dtype, as_objects)
    made.coef_ = made.coef_.copy("F" if as_objects else "C")
    joblib.dump(made, tmp_path / "model_head.pkl")
    weight, bias = read_linear_classifier(LocalBytes(tmp_path / "model_head.pkl", "model_head.pkl"))
    assert (weight == made.coef_).all() and (bias == made.intercept_).all() and weight.dtype == made.coef_.dtype
    head = _read(tmp_path / "model_head.pkl")
    theirs = joblib.load(tmp_path / "model_head.pkl")
    assert head.class_name == type(theirs).__name__
    assert head.labels == tuple(map(str, theirs.classes_))
    assert (head.shape, head.dtype) == (theirs.coef_.shape, str(theirs.coef_.dtype))
    assert head.has_bias
    assert head.reason == ""
    ours = features @ theirs.coef_.T + theirs.intercept_
    assert abs(ours.squeeze() - theirs.decision_function(features)).max() < 1e-4


def test_a_head_in_a_plain_pickle_is_read_too(tmp_path: Path) -> None:
    made, _ = _fitted(LABELS["texts"], "float64", as_objects=True)
    (tmp_path / "model_head.pkl").write_bytes(pickle.dumps(made))
    head = _read(tmp_path / "model_head.pkl")
    assert (head.shape, head.dtype, head.labels) == ((3, 8), "float64", tuple(made.classes_))


@pytest.mark.parametrize("count", [2, 5])
def test_the_torch_head_of_setfit_is_read(count: int, tmp_path: Path) -> None:
    joblib, setfit = pytest.importorskip("joblib"), pytest.importorskip("setfit")
    joblib.dump(setfit.SetFitHead(in_features=16, out_features=count, device="cpu"), tmp_path / "model_head.pkl")
    head = _read(tmp_path / "model_head.pkl")
    theirs = joblib.load(tmp_path / "model_head.pkl")
    assert head.class_name == "SetFitHead"
    assert head.shape == tuple(theirs.linear.weight.shape)


def test_a_head_that_holds_its_device_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`SetFitModel.save_pretrained` writes one: `SetFitHead` keeps the device that it was made for."""
    joblib, torch = pytest.importorskip("joblib"), pytest.importorskip("torch")
    library: Any = types.ModuleType("setfit.modeling")
    kind = type("SetFitHead", (torch.nn.Module,), {"__module__": "setfit.modeling"})
    monkeypatch.setitem(sys.modules, "setfit", types.ModuleType("setfit"))
    monkeypatch.setitem(sys.modules, "setfit.modeling", library)
    library.SetFitHead = kind
    head = kind()
    head.linear, head.device = torch.nn.Linear(16, 3), torch.device("cpu")
    head.in_features, head.out_features, head.bias = 16, 3, True
    joblib.dump(head, tmp_path / "model_head.pkl")
    found = _read(tmp_path / "model_head.pkl")
    assert (found.class_name, found.shape, found.reason) == ("SetFitHead", (3, 16), "")


class _Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def _wrapped(code: bytes, axes: bytes) -> bytes:
    """The description of an array as joblib writes it, without the data."""
    dtype = b"cnumpy\ndtype\n(V" + code + b"\nI00\nI01\ntR"
    wrapper = b"cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}(Vshape\n(" + axes + b"tVdtype\n" + dtype + b"ub"
    return b"\x80\x02" + wrapper


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"cos\nsystem\n(S'exit 1'\ntR.", "it references os.system"),
        (pickle.dumps(_Evil(os.system, "exit 1")), "it references posix.system"),
        (pickle.dumps(_Evil(eval, "1")), "it references builtins.eval"),
        (b"\x80\x04csklearn.utils\nload\n)R.", "it references sklearn.utils.load"),
        (b"\x80\x04cnumpy.testing\nruns\n)R.", "it references numpy.testing.runs"),
        (b"\x80\x04]", "it ends without STOP"),
        (b"\x80\x04].", "holds no classifier"),
        (b"\x80\x04csklearn.x\nEvil\n)\x81.", "holds no classifier"),
        (_wrapped(b"O", b"I1\n") * 2000, "it references joblib.numpy_pickle.NumpyArrayWrapper"),
        (_wrapped(b"i9999", b"I1\n"), "a number format that is not known"),
        (_wrapped(b"f8", b"I99999999999\n"), "out of bounds"),
        (_wrapped(b"f8", b"I60000000\nI60000000\n"), "end early"),
        (_wrapped(b"f8", b"I1\n" * 9), "has no shape"),
    ],
)
def test_hostile_and_broken_pickles_are_refused_in_one_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model_head.pkl"
    path.write_bytes(content)
    with pytest.raises(Malformed) as raised:
        _read(path)
    assert said in raised.value.message
    assert "\n" not in raised.value.message


def test_pickles_inside_a_pickle_count_towards_the_same_limits(tmp_path: Path) -> None:
    """Each is under the limit of memory, and all of them together are over it."""
    lists = b"\x80\x02(" + b"]" * 450_000 + b"l."
    array = _wrapped(b"O", b"I1\n").removeprefix(b"\x80\x02") + lists
    (tmp_path / "one.pkl").write_bytes(b"\x80\x02" + array + b".")
    (tmp_path / "three.pkl").write_bytes(b"\x80\x02" + array * 3 + b".")
    assert _read(tmp_path / "one.pkl").class_name == "NumpyArrayWrapper"
    with pytest.raises(Malformed, match="memory"):
        _read(tmp_path / "three.pkl")


def test_a_compressed_head_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model_head.pkl").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(Unsupported, match="compressed"):
        _read(tmp_path / "model_head.pkl")


@pytest.mark.parametrize("size", range(0, 1000, 37))
def test_a_cut_head_is_refused(size: int, tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    made, _ = _fitted(LABELS["texts"], "float64")
    joblib.dump(made, tmp_path / "whole.pkl")
    (tmp_path / "cut.pkl").write_bytes((tmp_path / "whole.pkl").read_bytes()[:size])
    with pytest.raises((Malformed, Unsupported)):
        _read(tmp_path / "cut.pkl")
