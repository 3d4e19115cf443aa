"""Rules, the configuration and the reading of `config.json` take time in proportion to the labels."""

import json
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from transformers import BertConfig

from headscope.checks.rules.labeled.labels import faults_of_label_maps
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.model.classes.model_config import build_config, share_labels
from headscope.core.source.reading.configuration import config_facts
from headscope.errors import Malformed

FEW, MANY = 20_000, 320_000


def values(count: int, form: str = "class {}") -> dict[str, Any]:
    names = [form.format(at) for at in range(count)]
    return {
        "id2label": {str(at): name for at, name in enumerate(names)},
        "label2id": dict(zip(names, range(count), strict=True)),
    }


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@pytest.mark.parametrize("faulty", [False, True])
def test_sixteen_times_the_labels_take_sixteen_times_as_long(faulty: bool) -> None:
    def judged(count: int) -> None:
        given = values(count)
        if faulty:
            given["label2id"] |= {f"class {at}": at + 1 for at in range(count)} | {"another": 0}
        told = faults_of_label_maps(config_facts(given))
        assert len(told) == (2 if faulty else 0)

    assert seconds(lambda: judged(MANY)) < 60 * max(seconds(lambda: judged(FEW)), 0.02)


@pytest.mark.parametrize("extra", [{}, {"num_labels": 3_000}, {"problem_type": "multi_label_classification"}])
def test_a_configuration_of_many_labels_is_the_one_that_from_dict_makes(extra: dict[str, Any]) -> None:
    given = values(3_000) | {"hidden_size": 64} | extra
    built, expected = build_config(BertConfig, given), BertConfig.from_dict(dict(given))
    assert built.to_dict() == expected.to_dict()
    assert type(next(iter(built.id2label))) is int
    share_labels(built)
    copied = deepcopy(built)
    assert copied.id2label is built.id2label
    assert copied.to_dict() == expected.to_dict()
    copied.num_labels = 4
    assert built.num_labels == 3_000


def test_config_json_may_name_a_million_labels() -> None:
    text = json.dumps(values(1_000_000, "LABEL_{}")).encode()
    assert len(text) > 20_000_000
    assert len(parse_object(text, "config.json")["id2label"]) == 1_000_000


@pytest.mark.parametrize("key", ["id2label", "names"])
def test_more_than_that_is_refused(key: str) -> None:
    text = b'{"%s": {' % key.encode() + b'"1234567": "a name", ' * 5_000_000 + b'"1": "last"}}'
    with pytest.raises(Malformed, match="limit"):
        parse_object(text, "config.json")


def test_other_files_keep_their_limit() -> None:
    with pytest.raises(Malformed, match="limit"):
        parse_object(json.dumps(values(500_000)).encode(), "tokenizer_config.json")
