"""Facts in words."""

from dataclasses import replace

import pytest
import transformers
from reports import roberta

import headscope
from headscope.core.facts.counting import list_of
from headscope.core.facts.stored.checkpoint import told_gaps
from headscope.core.words.words import POOLING, axes_of, bytes_of, loss_of, reads_decoder, share_of, size_of
from headscope.facts import Gap, Head, HiddenSource, ModelFacts, PoolingKind, Task
from headscope.shared.report.head.stages import path_root

BYTES = (
    (0, "0 bytes"),
    (1, "1 byte"),
    (999, "999 bytes"),
    (1000, "1 kB"),
    (26_431, "26.4 kB"),
    (999_600, "1 MB"),
    (498_818_054, "499 MB"),
    (141_107_412_992, "141 GB"),
)


@pytest.mark.parametrize(("number", "words"), BYTES)
def test_bytes_are_told_in_three_digits(number: int, words: str) -> None:
    assert bytes_of(number) == words


def test_a_reason_is_told_once_with_what_it_concerns() -> None:
    gaps = [*(Gap(f"HS{number}", "no head path") for number in range(101, 114)), Gap("labels", "no file")]
    assert list(told_gaps(gaps)) == ["HS101, HS102, HS103, HS104 and 9 more: no head path", "labels: no file"]


def about(**changes: object) -> ModelFacts:
    return replace(roberta().model, **changes)  # type: ignore[arg-type]


LOSSES = (
    (about(), "CrossEntropyLoss over softmax: one of 3 classes"),
    (
        about(loss="BCEWithLogitsLoss", activation="sigmoid", num_labels=1000),
        "BCEWithLogitsLoss over sigmoid: multi-label, 1,000 sigmoids (one-vs-rest)",
    ),
    (about(loss="MSELoss", activation="none", num_labels=1), "MSELoss, no activation: 1 number (regression)"),
    (about(task=Task.TOKEN_CLASSIFICATION), "CrossEntropyLoss over softmax: one of 3 classes for each token"),
    (about(loss="not determined", activation=""), "not determined"),
    (about(loss="CTCLoss", activation="softmax"), "CTCLoss, activation: softmax"),
)


@pytest.mark.parametrize(("model", "words"), LOSSES)
def test_a_loss_is_told_in_one_phrase(model: ModelFacts, words: str) -> None:
    assert loss_of(model) == words


def test_every_pooling_kind_has_words() -> None:
    assert set(POOLING) == set(PoolingKind)


def test_shapes_shares_and_lists() -> None:
    assert size_of((3, 768)) == "3x768"
    assert size_of(()) == "scalar"
    assert axes_of(("batch", "sequence", 768)) == "[batch, sequence, 768]"
    assert share_of(592_899, 124_647_939) == "0.48%"
    assert share_of(1, 0) == "0%"
    assert list_of("abc", 2) == "a, b and 1 more"


SOURCES = (
    (("model.decoder.layers.11.final_layer_norm",), "of the bart decoder"),
    (("decoder.dropout", "decoder.layers.2"), "of the bart decoder"),
    (("model.encoder.layers.11.final_layer_norm",), "of bart"),
    (("model.decoder.layers.1", "model.encoder.layers.1"), "of bart"),  # a head that reads both
    (("model.decoder_norm",), "of bart"),
    (("",), "of bart"),
    ((), "of bart"),
)


@pytest.mark.parametrize(("modules", "words"), SOURCES)
def test_hidden_states_are_of_the_decoder_only_if_all_were_made_there(modules: tuple[str, ...], words: str) -> None:
    head = roberta().head
    assert isinstance(head, Head)
    part = replace(head.pooling.parts[0], sources=tuple(HiddenSource(module=name) for name in modules))
    read = replace(head, pooling=replace(head.pooling, parts=(part,)))
    assert reads_decoder(read.pooling) == ("decoder" in words)
    assert path_root(read, "bart", "", 80).plain == f"hidden states [batch, sequence, 768] {words}"
    narrow = path_root(read, "bart", "modeling_bart.py", 50).plain
    assert narrow == f"hidden states [batch, sequence, 768]\n{words}  modeling_bart.py"


@pytest.mark.parametrize("name", ["BartForSequenceClassification", "T5ForTokenClassification"])
def test_the_decoder_is_named_where_the_class_has_one(name: str) -> None:
    """Transformers gives T5 for token classification its encoder only."""
    model = getattr(transformers, name)(transformers.AutoConfig.for_model(name.partition("For")[0].lower(), **SMALL))
    has_decoder = any("decoder" in path.split(".") for path, _ in model.named_modules())
    head = headscope.inspect(model).head
    assert head is not None
    assert reads_decoder(head.pooling) == has_decoder == name.startswith("Bart")


SMALL = {"d_model": 16, "vocab_size": 60, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8} | {
    f"{part}_{name}": size
    for part in ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
}
