"""Topics: all that a report can name is explained, and what stands in a topic is true of the program."""

import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from torch import nn
from transformers.models.bert.modeling_bert import BertPooler

import headscope
from headscope.checks.rules import every_rule
from headscope.core.words.console import plain_text
from headscope.errors import UsageError
from headscope.facts import PoolingKind
from headscope.shared.topics import Topic, find_topics, topics
from headscope.shell import main
from headscope.slices.lookup import class_topics
from headscope.slices.lookup.explained_screen import topic_screen
from scripts.pages.write_rules import rules_page

RULES = every_rule()

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/schema/headscope-1.0.schema.json").read_text())


def test_json_is_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["explain", "HS102", "--json"], ["explain", "--json"]):
        assert main(arguments) == 0
        jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


@pytest.mark.parametrize(("wrong", "near"), [("HS99", "HS"), ("frist-token", "first_token"), ("poler", "pooler")])
def test_an_unknown_topic_is_refused_with_the_nearest(
    wrong: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", wrong]) == 2
    assert near in capsys.readouterr().err


def test_several_words_are_one_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "CLS", "token"]) == 0
    assert "The CLS token" in capsys.readouterr().out


def test_the_page_of_rules_is_as_the_topics_say() -> None:
    assert (ROOT / "docs/rules.md").read_text(encoding="utf-8") == rules_page()


@pytest.mark.parametrize("words", [["HS102"], ["BertPooler", "CLS"]], ids=["a rule", "the code of a module"])
def test_it_needs_no_torch(words: list[str]) -> None:
    code = (
        f"import sys; from headscope.shell import main; assert main(['explain', *{words}]) == 0;"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers', 'huggingface_hub')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_rules_are_listed_in_order_and_all_of_them() -> None:
    listed = [topic.id for topic in topics() if topic.group == "rules"]
    assert listed == list(every_rule())


@pytest.mark.parametrize(("group", "kinds"), [("pooling", PoolingKind), ("rules", RULES), ("operations", ("linear",))])
def test_a_group_lists_its_topics(group: str, kinds: Iterable[str]) -> None:
    assert set(kinds) <= set(find_topics((group,))[0].text.split())


@pytest.mark.parametrize(
    ("written", "found"),
    [("LayerNorm", "layer_norm"), ("Linear", "linear"), ("logit", "logits"), ("hidden state", "hidden states"),
     ("mean pooling", "mean"), ("max-pooling", "max")],
)  # fmt: skip
def test_case_spaces_the_plural_and_the_word_pooling_make_no_difference(written: str, found: str) -> None:
    assert find_topics((written,))[0].id == found


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("is BERT's classifier pretrained by next-sentence prediction?", "nsp"),
        ("my LoRA adapter: is the head saved?", "lora"),
        ("why does my GPT-2 classifier give other scores in a batch?", "why batched predictions differ"),
        ("how do I make the load fail if the head is random?", "strict"),
        ("does vLLM compute the same as my training?", "vllm"),
        ("is the classifier saved", "HS107"),
        ("predictions are random", "random head"),
        ("the loss is not decreasing", "does not learn"),
        ("why do my multilabel probabilities not sum to 1?", "multi-label"),
        (
            "Some weights of the model checkpoint at m were not used when initializing BertModel: ['classifier.bias']",
            "unused",
        ),
        ("CUDA out of memory", "training settings"),
        ("CUDA error: device-side assert triggered", "HS003"),
        ("why is the score always 1.0", "HS205"),
        ("Asking to pad but the tokenizer does not have a padding token", "HS301"),
    ],
)
def test_a_question_leads_to_its_topic(question: str, found: str) -> None:
    assert [topic.id for topic in find_topics(question.split())] == [found]


@pytest.mark.parametrize(("name", "file"), [("BertPooler", BertPooler), ("Embedding", nn.Embedding)])
def test_a_module_is_shown_with_the_code_that_runs(name: str, file: type[nn.Module]) -> None:
    (topic,) = headscope.explain(name)
    lines, first = inspect.getsourcelines(file)
    assert Path(inspect.getfile(file)).as_posix().endswith(topic.text.partition("`")[2].partition("`")[0])
    assert f"line {first}." in topic.text
    code = textwrap.dedent(inspect.getsource(file.forward))
    assert code.strip() in topic.text
    assert topic.group == "classes" and "".join(lines)


def test_a_model_class_is_shown_with_its_head() -> None:
    (topic,) = headscope.explain("BertForSequenceClassification")
    report = headscope.inspect("BertForSequenceClassification")
    assert report.head is not None and report.head.formula in topic.text
    assert all(item.name in topic.text for item in report.head.parameters)


@pytest.mark.parametrize(("word", "is_decoder"), [("t5", True), ("bart", True), ("bert", False)])
def test_the_decoder_is_named_where_it_makes_the_hidden_states(word: str, is_decoder: bool) -> None:
    assert (", of the decoder." in headscope.explain(word)[0].text) is is_decoder


@pytest.mark.parametrize(
    ("words", "near"),
    [("BertPoler", "BertPooler"), ("qwen", "^did you mean qwen2 or "), ("hello world", "`headscope explain`")],
)
def test_words_of_no_topic_lead_to_the_nearest_or_to_the_list(words: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        headscope.explain(words)
    assert re.search(near, caught.value.hint)


def test_no_topic_of_the_list_says_its_own_name_twice() -> None:
    assert [topic.id for topic in topics() if topic.title == topic.id] == []


def test_python_gets_the_topics_that_the_terminal_shows() -> None:
    found = headscope.explain("HS102", "first_token")
    assert [topic.id for topic in found] == ["HS102", "first_token"]
    assert repr(found) == "<headscope explain: HS102, first_token>"
    assert "first_token" in str(found)
    assert len(headscope.explain()) == len(topics())
    with pytest.raises(UsageError, match="HS999"):
        headscope.explain("HS999")


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("Cannot handle batch sizes > 1 if no padding token is defined.", "HS301"),
        ("size mismatch for classifier.weight: copying a param with shape torch.Size([3, 768])", "HS201"),
        ("those params were newly initialized because missing from the checkpoint", "HS102"),
        (
            "Some weights of RobertaForSequenceClassification were not initialized from the model checkpoint at "
            "roberta-base and are newly initialized: ['classifier.dense.weight']",
            "HS102",
        ),
        ("my LoRA gives different results on each load", "random head"),
        ("Target size (torch.Size([16])) must be the same as input size (torch.Size([16, 4]))", "HS204"),
    ],
)
def test_the_message_of_a_loader_leads_to_its_rule(message: str, rule: str) -> None:
    try:
        first = headscope.explain(message)[0].id
    except UsageError as err:
        first = err.hint.split(" ", 3)[3]
    assert first.startswith(rule)


def test_nearest_topics_say_what_they_are_and_the_question_stays_whole() -> None:
    with pytest.raises(UsageError) as caught:
        find_topics(["is", "the", "LoRA", "of", "my", "colleague", "transposed"])
    assert caught.value.message == "no such topic: is the LoRA of my colleague transposed"
    with pytest.raises(UsageError, match="no such topic") as caught:
        find_topics(("stale index of shards",))
    assert re.search(r"HS\d{3} \([a-z-]+\)", caught.value.hint)


def test_code_to_copy_is_not_broken_at_the_width() -> None:
    line = f"call({', '.join(['argument'] * 12)})"
    shown = plain_text(topic_screen(Topic("ideas", "code", (), "Code", f"Text.\n\n```py\n{line}\n```")), 60)
    assert f"    {line}" in shown.splitlines()


UNANSWERED = {"robreta", "xlm-r", "gpt2 classification", "whisper classification", "qwen3 reranker"}


def test_what_people_type_has_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list was made by somebody who had not seen the topics."""
    monkeypatch.setattr(class_topics, "_topic_of_class", lambda name: Topic("classes", name, (), "", ""))
    open_words = set()
    for words in (Path(__file__).parent / "typed_words.txt").read_text(encoding="utf-8").splitlines():
        try:
            assert class_topics.topics_named(words.split())
        except UsageError:
            open_words.add(words)
    assert open_words == UNANSWERED


@pytest.mark.parametrize(
    ("word", "name"),
    [("bert", "BertForSequenceClassification"), ("GPT2", "GPT2ForSequenceClassification"),
     ("deberta-v2", "DebertaV2ForSequenceClassification"), ("ViT", "ViTForImageClassification"),
     ("wav2vec2", "Wav2Vec2ForSequenceClassification"), ("Qwen3", "Qwen3ForSequenceClassification")],
)  # fmt: skip
def test_a_family_stands_for_its_classifier(word: str, name: str) -> None:
    (topic,) = class_topics.topics_named([word])
    assert topic.id == name
    assert "Pooling." in topic.text


def test_every_phrase_leads_to_another_topic_than_its_name() -> None:
    pages = resources.files("headscope.shared") / "explanations"
    lines = (pages / "also.txt").read_text(encoding="utf-8").splitlines()
    own = {name.lower() for topic in topics() for name in (topic.id, *topic.names)}
    for line in lines:
        name, _, phrases = line.partition(": ")
        for phrase in phrases.split(", "):
            assert phrase not in own, f"{phrase} is a name of a topic already"
            assert find_topics(phrase.split())[0] is find_topics(name.split())[0]
