"""A SetFit checkpoint whole: saved, loaded and scored by the library, and what headscope says of it."""

from pathlib import Path

import pytest

import headscope
from tests.scorers import save_encoder

setfit = pytest.importorskip("setfit")


@pytest.mark.parametrize("family", ["Bert", "DistilBert", "Electra"])
def test_the_classifier_of_setfit_is_told_and_not_denied(family: str, tmp_path: Path) -> None:
    import numpy
    import sentence_transformers
    from sklearn.linear_model import LogisticRegression

    save_encoder(family, "Model", tmp_path / "plain")
    body = sentence_transformers.SentenceTransformer(str(tmp_path / "plain"))
    texts = [f"w{number} w{number + 1}" for number in range(30)]
    vectors = body.encode(texts)
    head = LogisticRegression().fit(vectors, numpy.arange(30) % 3)
    labels = ["bad", "fine", "good"]
    setfit.SetFitModel(model_body=body, model_head=head, labels=labels).save_pretrained(str(tmp_path / "saved"))
    loaded = setfit.SetFitModel.from_pretrained(str(tmp_path / "saved"))
    report = headscope.inspect(tmp_path / "saved")
    pipeline = report.checkpoint.sentence_transformers
    assert pipeline.head.labels == tuple(loaded.labels)
    assert pipeline.head.shape == loaded.model_head.coef_.shape == (3, 16)
    ours = vectors @ loaded.model_head.coef_.T + loaded.model_head.intercept_
    assert [labels[at] for at in ours.argmax(-1)] == list(loaded.predict(texts))
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
    import sentence_transformers
    from sklearn.linear_model import LogisticRegression

    save_encoder("Bert", "Model", tmp_path / "plain")
    body = sentence_transformers.SentenceTransformer(str(tmp_path / "plain"))
    texts = [f"w{number} w{number + 1}" for number in range(30)]
    head = LogisticRegression(C=1e6, max_iter=2000).fit(body.encode(texts), given * 10)
    setfit.SetFitModel(model_body=body, model_head=head, labels=names).save_pretrained(str(tmp_path / "saved"))
    loaded = setfit.SetFitModel.from_pretrained(str(tmp_path / "saved"))
    seen = headscope.inspect(tmp_path / "saved").checkpoint.sentence_transformers
    assert seen is not None and seen.head is not None
    assert seen.head.labels == scored and bool(seen.head.fault) is is_fault
    if scored == ("fine", "bad", "3"):
        with pytest.raises(IndexError):
            loaded.predict(texts)
    else:
        best = loaded.predict_proba(texts, as_numpy=True).argmax(-1)
        assert [scored[at] for at in best] == list(loaded.predict(texts))
    found = {item.id for item in headscope.check(tmp_path / "saved", profile="inference").findings}
    assert ("HS203" in found) is is_fault
