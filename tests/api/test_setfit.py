"""A SetFit checkpoint whole: saved, loaded and scored by the library, and what headscope says of it."""

from pathlib import Path
from typing import Any

import pytest

import headscope
from tests.scorers import save_encoder

setfit = pytest.importorskip("setfit")
TEXTS = [f"w{number} w{number + 1}" for number in range(30)]


def saved_setfit(folder: Path, classes: list[Any], names: list[str], family: str = "Bert") -> Any:
    """The library's own load of a body and a classifier that was fitted on texts of these classes in turn."""
    import sentence_transformers
    from sklearn.linear_model import LogisticRegression

    save_encoder(family, "Model", folder / "plain")
    body = sentence_transformers.SentenceTransformer(str(folder / "plain"))
    head = LogisticRegression(C=1e6, max_iter=2000).fit(body.encode(TEXTS), classes * (len(TEXTS) // len(classes)))
    setfit.SetFitModel(model_body=body, model_head=head, labels=names).save_pretrained(str(folder / "saved"))
    return setfit.SetFitModel.from_pretrained(str(folder / "saved"))


@pytest.mark.parametrize("family", ["Bert", "DistilBert", "Electra"])
def test_the_classifier_of_setfit_is_told_and_not_denied(family: str, tmp_path: Path) -> None:
    labels = ["bad", "fine", "good"]
    loaded = saved_setfit(tmp_path, [0, 1, 2], labels, family)
    report = headscope.inspect(tmp_path / "saved")
    pipeline = report.checkpoint.sentence_transformers
    assert pipeline.head.labels == tuple(loaded.labels)
    assert pipeline.head.shape == loaded.model_head.coef_.shape == (3, 16)
    ours = loaded.model_body.encode(TEXTS) @ loaded.model_head.coef_.T + loaded.model_head.intercept_
    assert [labels[at] for at in ours.argmax(-1)] == list(loaded.predict(TEXTS))
    found = headscope.check(tmp_path / "saved", profile="inference").findings
    assert "HS401" not in [item.id for item in found]
    screen = " ".join(str(report).split())
    assert "LogisticRegression" in screen and "3 classes: bad, fine, good" in screen
    assert "features x scores, 16 x 3" in screen


@pytest.mark.parametrize(
    ("given", "names", "scored", "is_fault"),
    [
        (["bad", "fine", "good"], ["bad", "fine", "good"], ("bad", "fine", "good"), False),
        (["bad", "fine", "good"], ["good", "fine", "bad"], ("bad", "fine", "good"), True),
        ([0, 1, 2], ["good", "fine", "bad"], ("good", "fine", "bad"), False),
        ([1, 2, 3], ["none", "good", "fine", "bad"], ("good", "fine", "bad"), True),
        ([0, 1, 2], ["good", "fine", "bad", "never seen"], ("good", "fine", "bad"), False),
        ([1, 2, 3], ["good", "fine", "bad"], ("fine", "bad", "3"), True),
        (["1", "2", "3"], ["1", "2", "3"], ("1", "2", "3"), False),
        ([-1, 0, 1], ["good", "fine", "bad"], ("bad", "good", "fine"), True),
    ],
    ids=str,
)
def test_names_in_another_order_than_the_scores(
    given: list[object], names: list[str], scored: tuple[str, ...], *, is_fault: bool, tmp_path: Path
) -> None:
    """What SetFit predicts for a text is the name that headscope gives the highest score."""
    loaded = saved_setfit(tmp_path, given, names)
    seen = headscope.inspect(tmp_path / "saved").checkpoint.sentence_transformers
    assert seen is not None and seen.head is not None
    assert seen.head.labels == scored and bool(seen.head.fault) is is_fault
    if scored == ("fine", "bad", "3"):
        with pytest.raises(IndexError):
            loaded.predict(TEXTS)
    else:
        best = loaded.predict_proba(TEXTS, as_numpy=True).argmax(-1)
        assert [scored[at] for at in best] == list(loaded.predict(TEXTS))
    found = {item.id for item in headscope.check(tmp_path / "saved", profile="inference").findings}
    assert ("HS203" in found) is is_fault
