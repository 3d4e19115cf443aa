"""Checkpoints of the Hub through the real client, against a Hub on loopback."""

import io
import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from hub import COMMIT, Hub, files_of, run_asking, serve
from safetensors.torch import load, save
from saving import FORMATS

from tests import warm


def keys_in(files: dict[str, bytes]) -> set[str]:
    """The tensors in the weight files, read by the libraries that wrote them."""
    keys: set[str] = set()
    for name, content in files.items():
        if name.endswith(".safetensors"):
            keys |= set(load(content))
        elif name.endswith(".bin"):
            keys |= set(torch.load(io.BytesIO(content), weights_only=True))
    return keys


GGUF = b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 10) + b"cls.weight" + struct.pack("<IQQIQ", 2, 8, 2, 0, 0) + bytes(96)
"""A header with one matrix, 2x8 as PyTorch writes it."""

FETCH = """
import sys
from huggingface_hub import hf_hub_download
for name in ("config.json", "model.safetensors"):
    hf_hub_download(sys.argv[1], name)
"""


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Tiny models of every format, and one whose weights are too large to be fetched unseen."""
    found = {}
    for name in ("safetensors", "sharded-safetensors", "torch-zip"):
        folder = tmp_path_factory.mktemp(name)
        FORMATS[name](FAMILIES["bert"].build("BertForPreTraining", vocab_size=5000), folder)
        found[f"someone/{name}"] = files_of(folder)
    head = save({"base_model.model.classifier.weight": torch.zeros(3, 32)})
    for name, config in (("adapter", b'{"base_model_name_or_path": "someone/safetensors"}'), ("lone-adapter", b"{}")):
        found[f"someone/{name}"] = {"adapter_config.json": config, "adapter_model.safetensors": head}
    found["someone/empty"] = {"README.md": b"nothing here"}
    found["someone/tensorflow"] = {"config.json": b'{"model_type": "bert"}', "tf_model.h5": b"0"}
    found["someone/gguf"] = {"README.md": b"", "a-Q4.gguf": GGUF, "b-Q8.gguf": GGUF}
    return found


@pytest.fixture
def hub(repos: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    with serve(Hub({name: dict(files) for name, files in repos.items()}, gated={"someone/gated"})) as running:
        yield running


@dataclass(frozen=True)
class Ran:
    """How a command ended, and the snapshot it wrote."""

    code: int
    answer: dict[str, Any]
    snapshot: dict[str, Any]
    seconds: float


def snapshot(reference: str, endpoint: str, home: Path, *options: str, **environment: str) -> Ran:
    """`headscope snapshot REFERENCE` in a separate process: the client reads its settings once."""
    output = home / "snapshot.json"
    output.unlink(missing_ok=True)
    began = time.monotonic()
    command = ("-m", "headscope", "snapshot", reference, "-o", str(output), "--json", *options)
    ran = run_asking(endpoint, home, *command, **environment)
    written = json.loads(output.read_text()) if output.exists() else {}
    return Ran(ran.returncode, json.loads(ran.stdout), written, time.monotonic() - began)


def fetch(repo: str, endpoint: str, home: Path) -> None:
    """Downloads a model with the Hub's client, in a separate process."""
    ran = run_asking(endpoint, home, "-c", FETCH, repo, HF_HUB_DISABLE_XET="1")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("name", "most"), [("safetensors", 9), ("sharded-safetensors", 40), ("torch-zip", 12)])
def test_only_headers_are_fetched_in_few_requests(name: str, most: int, hub: Hub, tmp_path: Path) -> None:
    ran = snapshot(f"someone/{name}", hub.endpoint, tmp_path)
    assert ran.code == 0, ran.answer
    assert {tensor["key"] for tensor in ran.snapshot["tensors"]} == keys_in(hub.repos[f"someone/{name}"])
    shapes = {tensor["key"]: tuple(tensor["shape"]) for tensor in ran.snapshot["tensors"]}
    built = FAMILIES["bert"].build("BertForPreTraining", vocab_size=5000).state_dict()
    assert shapes.items() <= {key: tuple(value.shape) for key, value in built.items()}.items()
    assert name != "torch-zip" or shapes.keys() == built.keys()
    total = sum(len(content) for file, content in hub.repos[f"someone/{name}"].items() if file.endswith((".bin", "rs")))
    assert hub.weight_bytes() < total / 3
    assert ran.snapshot["commit"] == COMMIT
    assert len(hub.log) <= most, hub.log


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "1"}, {"RateLimit": '"api";r=0;t=1'}])
def test_a_busy_server_is_asked_again(headers: dict[str, str], hub: Hub, tmp_path: Path) -> None:
    hub.busy, hub.busy_headers = 2, headers
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path, **{warm.PAUSE: ""})
    assert ran.code == 0, ran.answer
    assert ran.seconds > (2 if headers else 1)


def test_a_broken_answer_is_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    hub.broken = 1
    assert snapshot("someone/safetensors", hub.endpoint, tmp_path).code == 0


@pytest.mark.parametrize(
    ("fault", "options", "words"),
    [
        ({"busy": 99}, (), "503"),
        ({"busy": 99, "busy_headers": {"Retry-After": "60"}}, ("--timeout", "5"), "asks to wait 60 s"),
        ({"drip": 0.2}, ("--timeout", "2"), "longer than 2 s"),
        ({"ignore_range": True}, (), "answered 200"),
        ({"wrong_range": True}, (), "a different part"),
        ({"encoding": "gzip"}, (), "a different part"),
        ({"weight_status": 403}, (), "403"),
        ({"weight_status": 404}, (), "404"),
        ({"weight_status": 500}, (), "500"),
    ],
    ids=str,
)
def test_a_store_that_does_not_send_that_part_in_time_is_a_network_error(
    fault: dict[str, Any], options: tuple[str, ...], words: str, hub: Hub, tmp_path: Path
) -> None:
    vars(hub).update(fault)
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path, *options)
    assert (ran.code, ran.answer["error"]["code"]) == (3, "network")
    assert words in ran.answer["error"]["message"]
    assert ran.seconds < 27
    if fault == {"busy": 99}:
        assert hub.busy == 99 - 4


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://127.0.0.1:9/x", "//", "", "http://[", "a" * 9000]
)
def test_a_redirect_that_leads_nowhere_is_an_error(location: str, hub: Hub, tmp_path: Path) -> None:
    hub.redirect = location or f"{hub.endpoint}/someone/safetensors/resolve/main/model.safetensors"  # a loop
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path, "--timeout", "15")
    assert ran.code == 3
    assert ran.answer["error"]["code"] in ("network", "not_found")
    assert ran.seconds < 40


def test_a_missing_shard_makes_a_snapshot_of_a_part_and_says_so(hub: Hub, tmp_path: Path) -> None:
    files = hub.repos["someone/sharded-safetensors"]
    gone = next(name for name in files if name.endswith(".safetensors"))
    del files[gone]
    ran = snapshot("someone/sharded-safetensors", hub.endpoint, tmp_path)
    assert ran.code == 3
    assert [gap["what"] for gap in ran.answer["not_determined"]] == [gone]
    assert ran.snapshot["gaps"]


def test_a_pooling_module_that_is_not_there_stops_nothing(hub: Hub, tmp_path: Path) -> None:
    modules = [{"path": "", "type": "st.Transformer"}, {"path": "1_Pooling", "type": "st.Pooling"}]
    hub.repos["someone/safetensors"]["modules.json"] = json.dumps(modules).encode()
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path)
    assert ran.code == 0, ran.answer
    assert ran.snapshot["sentence"]["modules"] == ["Transformer", "Pooling"]
    assert "holds no 1_Pooling/config.json" in ran.snapshot["sentence"]["reason"]


def test_an_adapter_brings_its_base_model(hub: Hub, tmp_path: Path) -> None:
    ran = snapshot("someone/adapter", hub.endpoint, tmp_path)
    assert ran.code == 0, ran.answer
    assert ran.snapshot["base"] == "someone/safetensors"
    assert [tensor["key"] for tensor in ran.snapshot["adapter"]["tensors"]] == ["base_model.model.classifier.weight"]
    assert {tensor["key"] for tensor in ran.snapshot["tensors"]} == keys_in(hub.repos["someone/safetensors"])


@pytest.mark.parametrize("reference", ["someone/safetensors@v1", "{}/someone/safetensors/tree/v1"], ids=["id", "url"])
def test_a_revision_of_an_id_or_a_pasted_url_is_pinned_to_its_commit(reference: str, hub: Hub, tmp_path: Path) -> None:
    ran = snapshot(reference.format(hub.endpoint), hub.endpoint, tmp_path)
    assert (ran.code, ran.snapshot["revision"], ran.snapshot["commit"]) == (0, "v1", COMMIT)


FAILURES = [
    ("someone/unknown", "not_found", "has no repository"),
    ("someone/safetensors@v9", "not_found", "no revision v9"),
    ("someone/gated", "gated", "gated"),
    ("someone/empty", "not_found", "holds no config.json"),
    ("someone/lone-adapter", "malformed", "doesn't name its base model"),
    ("someone/tensorflow", "unsupported", "TensorFlow"),
    (
        "someone/gguf",
        "unsupported",
        "a-Q4.gguf is a GGUF file (architecture not named): it holds no operations, so its head is read from names "
        "and not traced; 1 other GGUF file not read",
    ),
]


def test_a_name_that_the_hub_lacks_gets_the_nearest(hub: Hub, tmp_path: Path) -> None:
    assert "bert-base-uncased" in snapshot("someone/bert-base", hub.endpoint, tmp_path).answer["error"]["hint"]


@pytest.mark.parametrize(("reference", "code", "part"), FAILURES, ids=[row[0] for row in FAILURES])
def test_what_the_hub_refuses_is_said_with_a_next_step(
    reference: str, code: str, part: str, hub: Hub, tmp_path: Path
) -> None:
    ran = snapshot(reference, hub.endpoint, tmp_path)
    assert ran.code == 3
    assert ran.answer["error"]["code"] == code
    assert part in ran.answer["error"]["message"]
    assert ran.answer["error"]["hint"]


@pytest.mark.parametrize("name", ["safetensors", "sharded-safetensors"])
def test_the_token_goes_to_the_hub_and_not_to_the_store(name: str, hub: Hub, tmp_path: Path) -> None:
    assert snapshot(f"someone/{name}", hub.endpoint, tmp_path, HF_TOKEN="hf_secret").code == 0
    assert any(request.has_token for request in hub.log if request.origin == "hub")
    assert not any(request.has_token for request in hub.log if request.origin == "cdn")


def test_cached_weights_are_read_where_they_are(hub: Hub, tmp_path: Path) -> None:
    fetch("someone/safetensors", hub.endpoint, tmp_path)
    hub.log.clear()
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path)
    assert ran.code == 0
    assert hub.weight_bytes() == 0


def test_offline_reads_the_cache_and_says_so(hub: Hub, tmp_path: Path) -> None:
    fetch("someone/safetensors", hub.endpoint, tmp_path)
    hub.log.clear()
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path, "--offline")
    assert (ran.code, hub.log) == (0, [])
    assert ran.snapshot["commit"] == COMMIT


def test_offline_without_a_cache_is_said(hub: Hub, tmp_path: Path) -> None:
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path, "--offline")
    assert (ran.code, ran.answer["error"]["code"], hub.log) == (3, "offline", [])


def test_an_unreachable_hub_is_noticed_soon_and_a_known_checkpoint_still_shown(tmp_path: Path) -> None:
    closed = "http://127.0.0.1:9"
    other, misspelled, known = (
        snapshot(name, closed, tmp_path) for name in ("someone/else", "robert-base", "roberta-base")
    )
    for unknown in (other, misspelled):
        assert (unknown.code, unknown.answer["error"]["code"]) == (3, "network")
    assert "roberta-base" in misspelled.answer["error"]["hint"]
    assert (known.code, known.snapshot["reference"]) == (0, "roberta-base")
    assert max(ran.seconds for ran in (other, misspelled, known)) < 15


def test_a_proxy_that_is_down_is_noticed_soon(tmp_path: Path) -> None:
    proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
    ran = snapshot("roberta-base", "http://hub.invalid", tmp_path, **proxies)
    assert (ran.code, ran.snapshot["reference"]) == (0, "roberta-base")
    assert ran.seconds < 15


def test_a_proxy_for_other_hosts_is_not_asked(hub: Hub, tmp_path: Path) -> None:
    proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost"}
    assert snapshot("someone/safetensors", hub.endpoint, tmp_path, **proxies).code == 0


def test_nothing_is_written_to_the_cache_which_may_be_closed(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = tmp_path / "cache"
    for folder in (tmp_path / "file" / "cache", cache):
        assert snapshot("someone/sharded-safetensors", hub.endpoint, tmp_path, "--cache-dir", str(folder)).code == 0
    assert not cache.exists()


def test_a_store_that_breaks_off_is_no_reason_to_drop_what_is_cached(hub: Hub, tmp_path: Path) -> None:
    fetch("someone/safetensors", hub.endpoint, tmp_path)
    hub.answer = lambda where, method, path: (500, {}, b"") if "/resolve/" in path else None
    ran = snapshot("someone/safetensors", hub.endpoint, tmp_path)
    assert (ran.code, ran.snapshot["commit"]) == (0, COMMIT)
    assert "local cache" in ran.snapshot["provenance"]


@pytest.mark.parametrize("name", ["safetensors", "sharded-safetensors", "torch-zip"])
def test_the_requests_told_are_those_that_the_servers_answered(name: str, hub: Hub, tmp_path: Path) -> None:
    hub.busy = 2
    ran = snapshot(f"someone/{name}", hub.endpoint, tmp_path)
    asked = [request for request in hub.log if "agent-harnesses" not in request.path]
    assert ran.answer["requests"] == len(asked), [f"{item.origin} {item.method} {item.path}" for item in asked]


TOKENIZER = {"tokenizer_config.json": b'{"padding_side": "right", "pad_token": "[PAD]"}'}


@pytest.mark.parametrize(
    ("answer", "undetermined"),
    [(None, False), ((500, {}, b""), True), ((0, {}, b""), True), ((200, {}, b"<html>"), True)],
    ids=["as it is", "in trouble", "closed", "a page"],
)
def test_what_check_reads_beside_the_weights_fails_in_a_sentence(
    repos: dict[str, dict[str, bytes]], tmp_path: Path, answer: Any, undetermined: bool
) -> None:
    files = repos["someone/safetensors"] | TOKENIZER
    found = (lambda where, method, path: answer if "tokenizer_config" in path else None) if answer else None
    with serve(Hub({"someone/model": files}, answer=found)) as hub:
        command = ("-m", "headscope", "check", "someone/model", "--for", "training", "--json")
        ran = run_asking(hub.endpoint, tmp_path, *command, HF_TOKEN="hf_secret")
    gaps = {item["what"]: item["reason"] for item in json.loads(ran.stdout)["results"][0]["not_determined"]}
    assert any(what.startswith("HS303") for what in gaps) == undetermined, gaps
    assert "hf_secret" not in ran.stdout + ran.stderr
    assert not any(request.has_token for request in hub.log if request.origin == "cdn")


VERIFY = """
import json, sys
import headscope
from transformers import BertForPreTraining
model = BertForPreTraining.from_pretrained(sys.argv[2])
model.cls.seq_relationship.weight.data[0, 0] += float(sys.argv[3])
result = headscope.verify(model, sys.argv[1], head=True)
print(json.dumps([result.verdict.value, result.bytes_read, sorted(item.name for item in result.tensors)]))
"""


@pytest.mark.parametrize(("change", "verdict"), [("0", "passed"), ("1", "failed")])
@pytest.mark.parametrize("repo", ["someone/safetensors", "someone/torch-zip"])
def test_verify_reads_the_head_of_a_repository_by_range(
    repo: str, change: str, verdict: str, hub: Hub, tmp_path: Path
) -> None:
    files = hub.repos[repo]
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    ran = run_asking(hub.endpoint, tmp_path, "-c", VERIFY, repo, str(folder), change)
    assert ran.returncode == 0, ran.stderr
    found, read, names = json.loads(ran.stdout.splitlines()[-1])
    assert found == verdict
    assert "cls.seq_relationship.weight" in names
    assert 0 < read < hub.weight_bytes()
    if "cls.predictions.decoder.weight" not in names:  # Transformers 5.0 doesn't tie it, where a file holds it twice
        assert hub.weight_bytes() < max(map(len, files.values())) / 2
