"""The page "Look at a checkpoint" in Chromium, against a Hub on loopback that redirects and allows as the real one."""

import json
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from headscope.core.checkpoints.reading import read_manifest
from headscope.core.checkpoints.snapshot import bundled_snapshots
from headscope.core.facts.stored.location import HubOptions, Location
from tests import warm
from tests.api.lookup.test_shipped import checkpoint_of, counts_of
from tests.docs.look_cases import IS_WHOLE, looked_at
from tests.docs.look_page import differences
from tests.docs.look_site import BERT, files_of, structure, used
from tests.docs.test_site import ROOT
from tests.headers_only import NAMES, Checkpoint, write
from tests.hub import COMMIT, MOVED, Answer, Hub, client_settings, serve
from tests.sweeps.census import Hollow

EVERY = 9
"""Which of the structures are compared in a browser: every so many; all if `HEADSCOPE_EVERY_STRUCTURE` is set."""
MOST_BYTES = 150_000
"""Of the store, that a visit may load."""


def hub_of_all(draw: random.Random) -> tuple[Hub, dict[str, int | None]]:
    """A Hub with a checkpoint of each structure and kind of class count, and the number of classes to ask for."""
    repos: dict[str, Any] = {}
    wanted: dict[str, int | None] = {}
    for at, entry in enumerate(looked_at()):
        if not IS_WHOLE and at % EVERY:
            continue
        plain = entry if IS_WHOLE else entry | {"dtypes": ["float32"]}  # a sample has no answers in other formats
        asked = [(count, options.get("num_labels")) for count, options in counts_of(entry, draw) if count < 10_000]
        for count, number in dict.fromkeys(asked):
            name = f"o/m{at}-{count}-{number}"
            repos[name], wanted[name] = files_of(checkpoint_of(plain, count, draw)), number
    return Hub(repos, cors=True, own_cache=True), wanted


INSPECT = """
import json, sys
import headscope
from tests.docs.look_page import said_of
for name, wanted in json.load(sys.stdin):
    report = headscope.inspect(name, cache=True, **({"num_labels": wanted} if wanted else {}))
    typed = f"{name} --num-labels {wanted}" if wanted else name
    print(json.dumps(said_of(report, name, typed)))
"""


def inspected(hub: Hub, wanted: dict[str, int | None], home: Path) -> Iterator[dict[str, Any]]:
    """What `headscope inspect` says of each repository of the same Hub."""
    settings = client_settings(hub.endpoint, home, XDG_CACHE_HOME=str(home), PYTHONPATH=str(ROOT))
    settings.pop("HEADSCOPE_NO_CACHE", None)
    ran = subprocess.run(
        [*warm.python(environment=settings), "-c", INSPECT],
        input=json.dumps(list(wanted.items())), capture_output=True, text=True, check=False, env=settings,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return map(json.loads, ran.stdout.splitlines())


def test_the_page_says_what_inspect_says_of_shipped_structures(project: Path, tmp_path: Path) -> None:
    """Field for field, in the same page, one after the other."""
    hub, wanted = hub_of_all(random.Random(5))
    asks = [{"name": name, "ask": {"model": name, "count": number}} for name, number in wanted.items()]
    told = used(project, hub, [{"name": "open", "visit": ""}, *asks])[1:]
    with serve(hub):
        said = list(inspected(hub, wanted, tmp_path))
    assert len(told) == len(said) == len(wanted)
    counts: Counter[str] = Counter()
    wrong = []
    for one, expected in zip(told, said, strict=True):
        answer = one["answers"][0]
        found = [answer["unknown"]] if "unknown" in answer else list(differences(answer, expected))
        counts["not known" if "unknown" in answer else "different" if found else "equal"] += 1
        wrong += [f"{one['name']}: {name}" for name in found]
    print(counts, "slowest", max(one["milliseconds"] for one in told), "ms")
    assert not wrong, wrong[:20]


def test_a_visit_is_small_and_asks_nobody_else(project: Path) -> None:
    hub = Hub({"o/bert": files_of(checkpoint_of(structure(BERT), 3, random.Random(1)))}, cors=True, own_cache=True)
    told = used(project, hub, [{"name": "bert", "visit": "?model=o/bert", "settle": 500}])[0]
    asked = [request for request in hub.log if request.method == "GET"]
    assert told["console"] == []
    assert "Head fully loaded" in told["shown"]
    own = [one for one in told["requests"] if not one["url"].startswith(("blob:", hub.endpoint, hub.cdn))]
    assert len({one["url"].split("/")[2] for one in own}) == 1
    names = [re.sub(r".*/look/", "", one["url"]) for one in own if "/look/" in one["url"] and ".gz" in one["url"]]
    assert len(names) == 3
    assert sum((project / "site" / "look" / name).stat().st_size for name in names) < MOST_BYTES
    assert len(asked) <= 5
    assert sum(request.sent for request in asked) < MOST_BYTES
    assert not any(request.has_token for request in asked)


def test_no_structure_takes_more_of_the_store_than_a_visit_may(project: Path) -> None:
    store = project / "site" / "look"
    largest = {part: max(path.stat().st_size for path in (store / part).iterdir()) for part in ("index", "structures")}
    assert sum(largest.values()) + (store / "words.json.gz").stat().st_size < MOST_BYTES


HOSTILE = '<img src=x onerror="globalThis.hostile=1">'


def repos_of_faults() -> dict[str, Any]:
    """Repositories by what is the matter with them; some of them the Hub answers in another way, as `fault` says."""
    good = files_of(checkpoint_of(structure(BERT), 3, random.Random(2)))
    config, weights = good["config.json"], good["model.safetensors"]
    named = {"id2label": {"0": HOSTILE, "1": "\u202e\x1b[2J", "2": "a|b @all"}}
    hostile = named | {"label2id": {name: int(at) for at, name in named["id2label"].items()}}
    claims = (10_000_000_000).to_bytes(8, "little") + b"{}"
    return {
        "o/hostile": {**good, "config.json": json.dumps({**json.loads(config), **hostile}).encode()},
        **{
            f"o/{name}": good
            for name in ("status-401", "gated-401", "busy", "cut", "slow", "wrong-cors", "whole", "other-part")
        },
        **{f"o/{name}": good for name in ("gated", "broken-server", "moves")},
        "o/ten-gigabytes": {**good, "model.safetensors": Hollow(claims, 10_000_000_000)},
        "o/not-json": {**good, "config.json": b"<!doctype html>"},
        "o/bad-header": {**good, "model.safetensors": (9).to_bytes(8, "little") + b"not json!"},
        "o/large-config": {**good, "config.json": b" " * 3_000_000},
        "o/bin": {"config.json": config, "pytorch_model.bin": b"x"},
        "o/sharded": {"config.json": config, "model.safetensors.index.json": b"{}", "model-1-of-2.safetensors": b""},
        "o/adapter": {"adapter_config.json": b"{}", "adapter_model.safetensors": b""},
        "o/modules": {**good, "modules.json": b"[]"},
        "o/code": {**good, "config.json": json.dumps({**json.loads(config), "auto_map": {}}).encode()},
        "o/no-config": {"model.safetensors": weights},
        "o/no-weights": {"config.json": config, "README.md": b""},
        "o/unheard": {**good, "config.json": json.dumps({**json.loads(config), "hidden_act": "tanh"}).encode()},
        "o/other-count": good,
        "o/base": files_of(checkpoint_of(structure("BertModel"), 3, random.Random(3), is_stated=False)),
    }


def fault(origin: str, method: str, path: str) -> Answer | None:
    """What the Hub answers for some of the repositories."""
    name = next((part for part in path.split("/") if part in _ANSWERS), "")
    is_weights = path.endswith("model.safetensors")
    if name == "slow" and is_weights:
        time.sleep(25)
        return None
    if name == "moves" and "/api/models/" in path:
        return 200, {}, json.dumps({"sha": MOVED, "siblings": [{"rfilename": "config.json"}]}).encode()
    if name in ("cut", "whole", "other-part"):
        return _ANSWERS[name] if origin == "cdn" and is_weights else None
    return _ANSWERS.get(name)


_ANSWERS: dict[str, Any] = {
    "status-401": (401, {}, b""),
    "gated-401": (401, {"X-Error-Code": "GatedRepo"}, b""),
    "busy": (429, {"Retry-After": "100"}, b""),
    "broken-server": (500, {}, b""),
    "wrong-cors": (200, {"Access-Control-Allow-Origin": "https://elsewhere.example"}, b"{}"),
    "cut": (206, {"Content-Length": "65536", "Content-Range": "bytes 0-65535/438000", "Connection": "close"}, b"x"),
    "other-part": (206, {"Content-Range": "bytes 5-9/438000"}, b"x" * 5),
    "whole": (200, {"Content-Length": "65536"}, b"x" * 65_536),
    "slow": None,
    "moves": None,
}

FAULTS = {
    "o/nobody": ("no model", "no public model of this name"),
    "o/bin@gone": ("no revision", "no such revision"),
    "o/status-401": ("refused", "refuses access without an account"),
    "o/gated-401": ("gated", "The model is gated"),
    "o/gated": ("gated", "The model is gated"),
    "o/busy": ("too many", "the limit is reached"),
    "o/broken-server": ("status", "The Hub answered 500"),
    "o/wrong-cors": ("unreached", "no answer from"),
    "o/cut": ("cut", "The connection broke"),
    "o/other-part": ("other part", "sent another part of model.safetensors"),
    "o/whole": ("whole", "wanted to send all of model.safetensors"),
    "o/slow": ("slow", "did not answer within 20 seconds"),
    "o/moves": ("commit", "changed while it was read"),
    "o/ten-gigabytes": ("header too large", "claims a header of 10,000,000,000 bytes"),
    "o/not-json": ("not json", "config.json is not valid JSON"),
    "o/bad-header": ("bad header", "not a valid safetensors file"),
    "o/large-config": ("too large", "config.json has more than 2,000,000 bytes"),
    "o/bin": ("bin", "PyTorch's format (.bin)"),
    "o/sharded": ("sharded", "in several files"),
    "o/adapter": ("adapter", "PEFT adapter"),
    "o/modules": ("modules", "sentence-transformers"),
    "o/code": ("remote code", "brings its own code"),
    "o/no-config": ("no config", "There is no config.json"),
    "o/no-weights": ("no weights", "There is no model.safetensors"),
    "o/unheard": ("structure", 'this class with hidden_act = "tanh"'),
    "https://huggingface.co/datasets/o/d": ("reference", "one of the Hub's datasets"),
    "https://example.com/o/d": ("reference", "not a Hub ID"),
    "no id <b>": ("reference", "not a Hub ID"),
}
"""What is typed, one word for what is the matter, and words of the sentence about it."""


def test_each_fault_has_its_sentence_and_the_command_to_run(project: Path) -> None:
    hub = Hub(repos_of_faults(), gated={"o/gated"}, cors=True, own_cache=True, answer=fault)
    asks = [{"name": text, "ask": {"model": text}} for text in FAULTS]
    other = {"name": "other", "ask": {"model": "o/other-count", "count": 7}}
    many = {"name": "many", "ask": {"model": "o/base", "count": 100_000}}
    offline = {"name": "offline", "visit": "?model=o/hostile", "offline": True}
    told = used(project, hub, [{"name": "open", "visit": ""}, *asks, other, many, offline])[1:]
    wrong = []
    for one, (kind, words) in zip(told, (*FAULTS.values(), *_COUNTS, ("unreached", "no network")), strict=True):
        answer, shown = one["answers"][0], one["shown"]
        is_named = kind == "reference" or "headscope inspect " in shown
        if answer.get("unknown") != kind or words not in shown or answer["sentence"] not in shown or not is_named:
            wrong.append(f"{one['name']}: {answer.get('unknown')}: {shown}")
    assert not wrong, wrong


_COUNTS = (("other count", "names 3 classes"), ("many classes", "more classes than this page knows"))


def test_hostile_names_are_shown_as_text(project: Path) -> None:
    hub = Hub(repos_of_faults(), cors=True, own_cache=True)
    visit = {"name": "hostile", "visit": "?model=o/hostile", "copy": True, "axe": True}
    told = used(project, hub, [visit, {"name": "id", "visit": f"?model={HOSTILE}", "settle": 300}])
    assert [one["scripts"] for one in told] == [0, 0]
    assert HOSTILE in told[0]["shown"]
    assert r"\u202e\x1b[2J" in told[0]["shown"]
    assert "onerror" in told[1]["shown"]
    assert r"\<img" in told[0]["copied"]
    assert "@&#8203;all" in told[0]["copied"]
    assert told[0]["axe"] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_readable_at_every_width(project: Path, theme: str) -> None:
    hub = Hub(repos_of_faults(), cors=True, own_cache=True)
    visits = ("", "?model=o/hostile", "?model=o/base&num-labels=3&with=o/hostile", "?model=o/bin")
    steps = [
        {"name": visit, "visit": visit, "theme": theme, "width": width, "axe": True, "wide": [width], "open": True}
        for visit in visits
        for width in (390, 768, 1920)
    ]
    told = used(project, hub, steps)
    assert [(one["name"], one["axe"]) for one in told if one["axe"]] == []
    assert [(one["name"], one["wider"]) for one in told if max(one["wider"].values()) > 0] == []
    assert [(one["name"], one["scrolls"]) for one in told if max(one["scrolls"].values()) > 0] == [], "pictures fit"


def test_dropped_files_are_read_where_they_are(project: Path, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(structure(BERT), 3, random.Random(4))
    folder = write(checkpoint, tmp_path / "model")
    hub = Hub({}, cors=True)
    files = [str(folder / name) for name in ("config.json", "model.safetensors")]
    steps = [{"name": "open", "visit": ""}, {"name": "both", "files": files}, {"name": "one", "files": files[1:]}]
    told = used(project, hub, steps)
    assert "Head fully loaded" in told[1]["shown"]
    assert told[1]["answers"][0]["report"]["checkpoint"]["bytes_total"] == (folder / "model.safetensors").stat().st_size
    assert told[2]["answers"][0]["unknown"] == "no config"
    assert hub.log == []


def test_each_link_on_the_page_has_an_answer(project: Path) -> None:
    """On the checkpoints that it names, made of their bundled snapshots."""
    page = unescape((ROOT / "docs" / "look.md").read_text(encoding="utf-8"))
    links = re.findall(r'href="look\.html(\?[^"]*)"', page)
    repos = {}
    for name in bundled_snapshots():
        manifest = read_manifest(Location(name, hub=HubOptions(offline=True)))
        tensors = {item.key: (NAMES[item.dtype], item.shape) for item in manifest.tensors}
        repos[name] = files_of(Checkpoint(name, manifest.config, tensors))
    hub = Hub(repos, cors=True, own_cache=True)
    told = used(project, hub, [{"name": link, "visit": link} for link in links])
    assert len(links) == 14
    assert [(one["name"], item["unknown"]) for one in told for item in one["answers"] if "unknown" in item] == []


def test_the_commit_is_that_of_the_answers(project: Path) -> None:
    hub = Hub(repos_of_faults(), cors=True, own_cache=True)
    told = used(project, hub, [{"name": "revision", "visit": "?model=o/hostile@v1"}])[0]
    paths = [request.path for request in hub.log]
    report = told["answers"][0]["report"]
    assert (report["checkpoint"]["commit"], report["checkpoint"]["revision"]) == (COMMIT, "v1")
    assert f"/o/hostile/resolve/{COMMIT}/model.safetensors" in paths
