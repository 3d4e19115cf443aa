"""Tiny checkpoints in folders, for the tests that change what was loaded from them."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from tests.verification.tiny import TINY, adapted, loaded


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "bert"
    torch.manual_seed(3)
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved: Path) -> BertForSequenceClassification:
    return loaded(saved)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "gpt2"
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=99, pad_token_id=0)
    GPT2ForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def query(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "query"
    return adapted(folder, saved, target_modules=["query"])
