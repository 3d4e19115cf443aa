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
