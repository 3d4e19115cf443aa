"""Rerankers that are a few rows of a language-model head, held against Transformers and sentence-transformers."""

from pathlib import Path

import pytest
import torch
import transformers

import headscope
from headscope.errors import UsageError
from headscope.facts import PoolingKind, TokenRow
from tests import families
from tests.edits import edit_json
from tests.scorers import FAMILIES, WORDS, save_language_model

NO, YES = WORDS.index("no"), WORDS.index("yes")
TEXTS = [("w1 w2", "w3 w4 w5"), ("w6", "w7")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_of_two_tokens_gives_the_language_models_own_logits(family: str, tmp_path: Path) -> None:
    model = save_language_model(family, tmp_path)
    report = headscope.inspect(tmp_path, tokens="no,yes", prove=True)
    head = report.head
    assert head.pooling.kind is PoolingKind.TOKEN_PAIR
    assert head.token_rows.rows == (TokenRow(NO, "no"), TokenRow(YES, "yes"))
    assert head.token_rows.vocabulary == len(WORDS)
    assert (head.verification.agrees, head.verification.formula) == (True, "equal")
    assert report.model.labels == ("no", "yes")
    assert report.model.activation == "softmax"
    assert report.model.class_name == f"{family}ForCausalLM"
    assert not report.not_determined
    ids = torch.tensor([[10, 11, 12, 13]])
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
        matrix = dict(model.named_parameters(remove_duplicate=False))[head.token_rows.parameter]
        rows = torch.stack([matrix[row.id] for row in head.token_rows.rows])
        ours = whole.hidden_states[-1][:, -1] @ rows.T
    theirs = whole.logits[:, -1, [NO, YES]]
    if head.formula == "logits = lm_head[[no, yes]](h[-1])":
        torch.testing.assert_close(ours, theirs)
    else:  # the family computes something after its matrix, which the formula shows
        assert not torch.allclose(ours, theirs)
        assert family in {"Gemma2", "Granite"}


@pytest.mark.parametrize("family", ["Qwen3", "Gemma", "Llama"])
def test_the_matrix_is_reported_as_transformers_loads_it(family: str, tmp_path: Path) -> None:
    save_language_model(family, tmp_path)
    report = headscope.inspect(tmp_path, tokens=("no", "yes"))
    cls = getattr(transformers, f"{family}ForCausalLM")
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report.weights.new) == info["missing_keys"]
    assert set(report.weights.unused) == info["unexpected_keys"]
    assert [item.shape for item in report.head.parameters] == [(len(WORDS), 16)]


@pytest.mark.parametrize("family", ["Qwen3", "Gemma", "Llama", "OPT"])
@pytest.mark.parametrize("yes_alone", [False, True])
def test_a_cross_encoder_of_sentence_transformers_says_its_tokens(family: str, yes_alone: bool, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.cross_encoder.modules")
    save_language_model(family, tmp_path / "plain")
    if family == "OPT":
        from sentence_transformers.base.modules import Transformer

        made = [Transformer(str(tmp_path / "plain"), transformer_task="text-generation"), modules.LogitScore(YES, NO)]
        encoder = library.CrossEncoder(modules=made)
    else:
        encoder = library.CrossEncoder(str(tmp_path / "plain"))
    if yes_alone:
        encoder[1].false_token_id = None
    encoder.save_pretrained(str(tmp_path / "saved"))
    report = headscope.inspect(tmp_path / "saved", prove=True)
    head = report.head
    assert [row.token for row in head.token_rows.rows] == (["yes"] if yes_alone else ["no", "yes"])
    assert "HS401" not in [item.id for item in report.findings]
    assert not [item for item in report.findings if item.id in {"HS303", "HS305"}]  # the library pads on the left
    loaded = library.CrossEncoder(str(tmp_path / "saved"))
    assert (loaded[1].false_token_id, loaded[1].true_token_id) == (None if yes_alone else NO, YES)
    hidden = []
    base = loaded[0].model
    matrix = dict(base.named_parameters(remove_duplicate=False))[head.token_rows.parameter]
    output = base.get_output_embeddings()
    hook = output.register_forward_pre_hook(lambda module, given: hidden.append(given[0][:, -1]))
    theirs = torch.tensor(loaded.predict(TEXTS, batch_size=1))
    hook.remove()
    logits = torch.cat(hidden) @ torch.stack([matrix[row.id] for row in head.token_rows.rows]).T
    ours = torch.sigmoid(logits[:, 0]) if yes_alone else torch.softmax(logits, -1)[:, 1]
    order = [0, 1] if torch.allclose(ours, theirs, atol=1e-5) else [1, 0]  # the library sorts its texts by length
    torch.testing.assert_close(ours[order], theirs, atol=1e-5, rtol=1e-4)


def test_tokens_may_be_named_by_their_ids(tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path)
    report = headscope.inspect(tmp_path, tokens=f"id:{NO},id:{YES}")
    assert report.head.formula == "logits = lm_head[[no, yes]](h[-1])"


def test_labels_rename_the_scores_of_tokens(tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path)
    report = headscope.inspect(tmp_path, tokens="no,yes", labels="bad,good")
    assert report.model.labels == ("bad", "good")
    with pytest.raises(UsageError, match=r"3 labels .* 2 tokens"):
        headscope.inspect(tmp_path, tokens="no,yes", labels="a,b,c")


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("no,maybe", "the vocabulary has no token 'maybe'"),
        ("no,YES", "the vocabulary has no token 'YES'"),
        ("no,yes,w1", "--tokens names no, yes, w1"),
        ("yes,yes", "--tokens names yes, yes"),
        ("id:100,id:5", "token 100 is outside the vocabulary of 100 tokens"),
    ],
)
def test_tokens_that_are_not_there_are_refused(tokens: str, said: str, tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path)
    with pytest.raises(UsageError, match=said):
        headscope.inspect(tmp_path, tokens=tokens)


def test_tokens_need_a_causal_language_model(tmp_path: Path) -> None:
    families.FAMILIES["vit"].build("ViTModel").save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"^vit "):
        headscope.inspect(tmp_path, tokens="id:1,id:2")


def test_padding_on_the_right_is_found_for_tokens_that_the_user_names(tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path)
    for side in ("right", "left"):
        edit_json(tmp_path / "tokenizer_config.json", {"padding_side": side})
        result = headscope.check(tmp_path, tokens="no,yes", profile="inference")
        assert ("HS303" in [item.id for item in result.findings]) is (side == "right")


def test_a_snapshot_keeps_the_tokens_by_their_ids(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_language_model("Qwen3", tmp_path / "plain")
    library.CrossEncoder(str(tmp_path / "plain")).save_pretrained(str(tmp_path / "saved"))
    headscope.snapshot(tmp_path / "saved", tmp_path / "one.json")
    report = headscope.inspect(tmp_path / "one.json")
    assert report.head.token_rows.rows == (TokenRow(NO), TokenRow(YES))
    assert report.head.formula == f"logits = lm_head[[id_{NO}, id_{YES}]](h[-1])"


class _Reranker(torch.nn.Module):
    """A module of one's own that scores two tokens, or all of them by a softmax first."""

    def __init__(self, model: torch.nn.Module, over_all: bool) -> None:
        super().__init__()
        self.model, self.over_all = model, over_all

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -1]
        if self.over_all:
            logits = logits.log_softmax(-1)
        return logits[:, [NO, YES]]


def test_rows_of_a_module_in_memory_are_seen_and_a_softmax_over_all_rows_is_not_two_of_them(tmp_path: Path) -> None:
    model = save_language_model("Llama", tmp_path)
    ids = torch.randint(6, 99, (2, 9))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    head = headscope.inspect(_Reranker(model, over_all=False), example_inputs=given).head
    assert [row.id for row in head.token_rows.rows] == [NO, YES]
    assert head.token_rows.parameter == "model.lm_head.weight"
    assert head.pooling.kind is PoolingKind.TOKEN_PAIR
    head = headscope.inspect(_Reranker(model, over_all=True), example_inputs=given).head
    assert head.token_rows is None
    assert head.pooling.kind is PoolingKind.LAST_TOKEN
