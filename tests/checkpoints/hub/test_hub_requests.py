"""How many requests a checkpoint of the Hub takes, at which commit, and whether it is read as the same folder is."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from hub import COMMIT, MOVED, OWN_CACHE, Answer, Hub, Request, files_of, run_asking, serve
from safetensors.torch import save
from saving import FORMATS

READ = """
import json, sys
from headscope.core.checkpoints.reading import read_manifest
from headscope.slices.fleet.hub.listing import listed_models
from headscope.errors import HeadscopeError
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.facts.plain import to_dict

def located(words, hub):
    if "listing" not in words:
        return [Location(hub=hub, **words["location"])]
    return [model.location(hub) for model in listed_models(hub, **words["listing"])]


def read(location):
    try:
        return to_dict(read_manifest(location))
    except HeadscopeError as err:
        return {"reference": location.reference, "error": err.message}


found = []
for line in sys.stdin:
    words = json.loads(line)
    hub = HubOptions(timeout=words.get("timeout"))
    try:
        found += [read(location) for location in located(words, hub)]
    except HeadscopeError as err:
        found.append({"error": err.message})
print(json.dumps(found))
"""
CHECKS = """
import json, sys
import headscope
print(json.dumps([headscope.check(line.strip(), profile="training").to_dict() for line in sys.stdin]))
"""
HEALTH = """
import json, sys
import headscope
words = [line.strip() for line in sys.stdin]
print(json.dumps([headscope.inspect("someone/model", health="health" in words, cache=False).to_dict()]))
"""
CONFIG = json.dumps({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}).encode()


def run(code: str, endpoint: str, home: Path, lines: list[str]) -> list[dict[str, Any]]:
    """What a script prints in a process of its own, whose client asks that Hub."""
    ran = run_asking(endpoint, home, "-c", code, given="\n".join(lines))
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def read(hub: Hub, home: Path, **location: Any) -> dict[str, Any]:
    (found,) = run(READ, hub.endpoint, home, [json.dumps({"location": location})])
    return found


def listed(hub: Hub, home: Path, *, timeout: float | None = None, **listing: Any) -> list[dict[str, Any]]:
    return run(READ, hub.endpoint, home, [json.dumps({"listing": listing, "timeout": timeout})])


def asked(hub: Hub) -> list[Request]:
    """The requests for checkpoints; the client itself asks once what agents there are."""
    return [item for item in hub.log if "agent-harnesses" not in item.path]


def of_hub(hub: Hub) -> list[str]:
    """The paths that the Hub's own counts know."""
    return [item.path for item in asked(hub) if item.origin == "hub" and not item.path.startswith(OWN_CACHE)]


def weights(**shapes: tuple[int, ...]) -> bytes:
    return save({name.replace("__", "."): torch.zeros(shape) for name, shape in shapes.items()})


@pytest.fixture
def one_file() -> dict[str, bytes]:
    return {"config.json": CONFIG, "model.safetensors": weights(classifier__weight=(2, 4)), "README.md": b"text"}


@pytest.fixture
def hub(one_file: dict[str, bytes]) -> Iterator[Hub]:
    repos = {f"someone/model-{number}": dict(one_file) for number in range(5)} | {"else/model": dict(one_file)}
    with serve(Hub(repos)) as running:
        yield running


@pytest.mark.parametrize("own_cache", [False, True])
def test_a_checkpoint_of_one_file_takes_three_requests_and_none_to_the_api(
    own_cache: bool, hub: Hub, tmp_path: Path
) -> None:
    hub.own_cache = own_cache
    found = read(hub, tmp_path, reference="someone/model-0")
    assert (found["commit"], len(found["tensors"])) == (COMMIT, 1)
    first, *others = of_hub(hub)
    assert first == "/someone/model-0/resolve/main/config.json"
    at_commit = f"/someone/model-0/resolve/{COMMIT}"
    assert sorted(others) == [f"{at_commit}/model.safetensors", f"{at_commit}/modules.json"]
    assert found["requests"] == len(asked(hub))


@pytest.mark.parametrize(
    "listing", [{"author": "someone"}, {"search": "someone/"}, {"filters": ["some"]}, {"collection": "someone/all"}]
)
def test_a_checkpoint_from_a_listing_takes_two_requests(listing: dict[str, Any], hub: Hub, tmp_path: Path) -> None:
    wanted = [name for name in hub.repos if name.startswith("someone/")]
    for name in wanted:
        hub.repos[name]["some.tag"] = b""
    hub.collections["someone/all"] = wanted
    found = listed(hub, tmp_path, **listing)
    assert [item["reference"] for item in found] == wanted
    assert {item["commit"] for item in found} == {COMMIT}
    pages = [path for path in of_hub(hub) if path.startswith("/api/")]
    assert set(pages) <= {"/api/models", "/api/collections/someone/all"}
    assert len(pages) == len(wanted) // hub.page + 1 + ("collection" in listing)
    files = [path for path in of_hub(hub) if not path.startswith("/api/")]
    assert len(files) == 2 * len(wanted)
    assert all(f"/resolve/{COMMIT}/" in path for path in files)


def test_a_collection_of_many_authors_is_read(hub: Hub, tmp_path: Path) -> None:
    hub.collections["x"] = ["someone/model-3", "else/model", "gone/model", "someone/model-1"]
    found = listed(hub, tmp_path, collection="x")
    assert [item["reference"] for item in found] == hub.collections["x"]
    [error] = [item["error"] for item in found if "error" in item]
    assert "gone/model" in error
    hub.log.clear()
    (unknown,) = listed(hub, tmp_path, collection="y")
    assert unknown["error"].endswith(" collection y")


def test_a_listing_ends_where_it_is_limited(hub: Hub, tmp_path: Path) -> None:
    found = listed(hub, tmp_path, author="someone", limit=2)
    assert len(found) == 2
    assert sum(path == "/api/models" for path in of_hub(hub)) == 1


def in_place_of_models(status: int, headers: dict[str, str], body: bytes) -> Callable[[str, str, str], Answer | None]:
    """What the Hub says where it is asked for a page of its models."""
    return lambda origin, method, path: (status, headers, body) if path == "/api/models" else None


def test_a_listing_whose_next_page_is_itself_ends(hub: Hub, tmp_path: Path) -> None:
    page = [{"id": f"someone/model-{number}", "sha": COMMIT, "siblings": []} for number in range(500)]
    again = {"Link": f'<{hub.endpoint}/api/models>; rel="next"', "Content-Type": "application/json"}
    hub.answer = in_place_of_models(200, again, json.dumps(page).encode())
    (found,) = listed(hub, tmp_path, author="someone")
    assert list(found) == ["error"] and "repeats" in found["error"]
    assert sum(path == "/api/models" for path in of_hub(hub)) < 10


@pytest.mark.parametrize("status", [429, 503])
def test_a_listing_is_not_waited_for_without_end(status: int, hub: Hub, tmp_path: Path) -> None:
    """The client of the Hub would sleep for a day."""
    hub.answer = in_place_of_models(status, {"Retry-After": "86400"}, b"")
    (found,) = listed(hub, tmp_path, author="someone")
    assert list(found) == ["error"] and "86400 s" in found["error"]


def test_the_pause_that_the_hub_asks_for_is_not_the_time_of_a_listing(hub: Hub, tmp_path: Path) -> None:
    refused = iter((True, False))
    hub.page = 1000
    hub.answer = lambda origin, method, path: (
        (429, {"Retry-After": "6"}, b"") if path == "/api/models" and next(refused, False) else None
    )
    assert len(listed(hub, tmp_path, author="someone", timeout=5)) == 5


def test_a_listed_name_that_cannot_be_an_id_is_not_left_out(hub: Hub, tmp_path: Path) -> None:
    """Nor is it taken for a path of this machine."""
    names = ("../..", "/", "someone/model-", "someone/\x1b[31m", "someone/model-0")
    page = json.dumps([{"id": name, "sha": COMMIT, "siblings": None} for name in names])
    hub.answer = in_place_of_models(200, {"Content-Type": "application/json"}, page.encode())
    *unread, found = listed(hub, tmp_path, author="someone")
    assert [item["reference"] for item in unread] == [f"hf://{name}" for name in names[:-1]]
    assert all("no model" in item["error"] for item in unread), unread
    assert (found["reference"], found["commit"]) == ("someone/model-0", COMMIT)


def test_a_listing_that_is_nested_too_deeply_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.answer = in_place_of_models(200, {}, b"[" * 100_000)
    (found,) = listed(hub, tmp_path, author="someone")
    assert list(found) == ["error"] and found["error"].endswith("(RecursionError)")


def test_all_that_is_read_is_of_one_commit(hub: Hub, one_file: dict[str, bytes], tmp_path: Path) -> None:
    """The repository moves between the first request and the second."""
    hub.moved["someone/model-0"] = {
        "config.json": CONFIG,
        "model.safetensors": weights(score__weight=(7, 4)),
        "modules.json": b"[]",
    }

    def move(where: str, method: str, path: str) -> None:
        hub.head = MOVED if "config.json" not in path else hub.head

    hub.answer = move
    before = read(hub, tmp_path, reference="someone/model-0")
    assert (before["commit"], before["tensors"][0]["key"]) == (COMMIT, "classifier.weight")
    hub.answer = None
    after = read(hub, tmp_path, reference="someone/model-0")
    assert (after["commit"], after["tensors"][0]["key"]) == (MOVED, "score.weight")
    assert after["sentence"]["reason"] == "modules.json lists 0 modules"


def test_a_commit_that_was_listed_is_read_even_when_the_repository_has_moved(hub: Hub, tmp_path: Path) -> None:
    hub.moved["someone/model-0"], hub.head = {"config.json": CONFIG}, MOVED
    names = ["config.json", "model.safetensors"]
    found = read(hub, tmp_path, reference="someone/model-0", commit=COMMIT, names=names)
    assert (found["commit"], len(found["tensors"]), len(of_hub(hub))) == (COMMIT, 1, 2)


def test_the_old_name_of_a_repository_costs_one_request_more(hub: Hub, tmp_path: Path) -> None:
    hub.renamed["old-model"], hub.own_cache = "someone/model-0", True
    found = read(hub, tmp_path, reference="old-model")
    assert (found["reference"], found["commit"], len(found["tensors"])) == ("old-model", COMMIT, 1)
    assert [path.partition("/resolve/")[0] for path in of_hub(hub)] == ["/old-model", *["/someone/model-0"] * 3]


BESIDE: dict[str, dict[str, bytes]] = {
    "nothing": {},
    "a tokenizer": {"tokenizer_config.json": b'{"padding_side": "left"}', "vocab.txt": b"a"},
    "sentence-transformers": {
        "modules.json": json.dumps(
            [{"path": "", "type": "st.Transformer"}, {"path": "1_Pooling", "type": "st.Pooling"}]
        ).encode(),
        "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}',
        "sentence_bert_config.json": b'{"max_seq_length": 99}',
    },
    "modules that are broken": {"modules.json": b"{"},
    "another library": {"tf_model.h5": b"0", "flax_model.msgpack": b"0", "generation_config.json": b"{}"},
    "a variant": {"model.fp16.safetensors": weights(x=(1,))},
    "an adapter": {
        "adapter_config.json": b'{"base_model_name_or_path": "someone/base"}',
        "adapter_model.safetensors": weights(base_model__model__classifier__weight=(2, 32)),
    },
}
OF_ITS_PLACE = {"lacks_tokenizer", "reference", "kind", "commit", "requests", "bytes_read", "notices"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small checkpoints in every format, and with everything beside them that a repository may hold."""
    root = tmp_path_factory.mktemp("corpus")
    model = FAMILIES["bert"].build("BertForSequenceClassification")
    saves: dict[str, tuple[Callable[..., object], dict[str, bytes]]] = {name: (FORMATS[name], {}) for name in FORMATS}
    for name, files in BESIDE.items():
        for kind in ("safetensors", "sharded-safetensors", "torch-zip"):
            saves[f"{kind} with {name}"] = FORMATS[kind], files
        saves[f"no weights with {name}"] = lambda model, folder: model.config.save_pretrained(folder), files
    found = {}
    for name, (write, files) in saves.items():
        folder = found[name] = root / name.replace(" ", "-")
        folder.mkdir()
        write(model, folder)
        for path, content in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(content)
    return found


def without_place(document: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on where a checkpoint lies: an adapter's own manifest likewise."""
    found = {name: value for name, value in document.items() if name not in OF_ITS_PLACE}
    if found.get("adapter"):
        found["adapter"] = without_place(found["adapter"])
    return found


def test_a_repository_is_read_as_the_same_folder(corpus: dict[str, Path], tmp_path: Path) -> None:
    """By its id, from a listing, and on the disk: field for field, in every format and with anything beside it."""
    repositories = {f"someone/{folder.name}": files_of(folder) for folder in corpus.values()}
    with serve(Hub(repositories | {"someone/base": files_of(corpus["safetensors"])}, page=1000)) as hub:
        folders = [json.dumps({"location": {"reference": str(folder)}}) for folder in corpus.values()]
        ids = [json.dumps({"location": {"reference": f"someone/{folder.name}"}}) for folder in corpus.values()]
        of_folders = run(READ, hub.endpoint, tmp_path, folders)
        of_ids = run(READ, hub.endpoint, tmp_path, ids)
        from_listing = listed(hub, tmp_path, author="someone")
    assert len(of_folders) == len(of_ids) == len(corpus)
    by_id = {item["reference"]: item for item in from_listing}
    for name, folder, found in zip(corpus, of_folders, of_ids, strict=True):
        if "error" in folder:
            told = folder["error"].replace(str(corpus[name]), f"someone/{corpus[name].name}")
            assert found.get("error") == told, name
            continue
        assert without_place(found) == without_place(folder), name
        assert without_place(by_id[f"someone/{corpus[name].name}"]) == without_place(folder), name


WORDS = {f"w{number}": number for number in range(99)}
LARGE = WORDS | {"longer " * 1000 + str(number): 99 + number for number in range(900)}
TOKENIZERS: dict[str, tuple[int, dict[str, str]]] = {
    "settings alone": (6, {"tokenizer_config.json": '{"padding_side": "left"}'}),
    "six megabytes": (5, {
        "tokenizer_config.json": '{"added_tokens_decoder": {}}',
        "tokenizer.json": json.dumps({"model": {"vocab": LARGE}}),
    }),
    "lines": (8, {
        "tokenizer_config.json": "{}", "special_tokens_map.json": '{"pad_token": "w6"}', "vocab.txt": "\n".join(WORDS),
    }),
    "pieces": (6, {"tokenizer_config.json": '{"pad_token": "w6"}', "spiece.model": "w"}),
}  # fmt: skip
"""What is beside the weights, and the most requests that a check makes."""


@pytest.mark.parametrize("beside", TOKENIZERS)
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "xlnet"])
def test_a_check_by_id_says_what_the_check_of_the_folder_says(family: str, beside: str, tmp_path: Path) -> None:
    model = FAMILIES[family].build(FAMILIES[family].classifier)
    folder = tmp_path / "someone" / "model"
    model.save_pretrained(folder)
    most, files = TOKENIZERS[beside]
    for name, content in files.items():
        (folder / name).write_text(content)
    with serve(Hub({"someone/model": files_of(folder)})) as hub:
        (by_id,) = run(CHECKS, hub.endpoint, tmp_path, ["someone/model"])
        (local,) = run(CHECKS, hub.endpoint, tmp_path, [str(folder)])
    for item in by_id["findings"]:
        assert item["code"] == "", "code writes files, and an id has none"
    for item in local["findings"]:
        item["code"] = ""
    for name in ("findings", "not_determined", "not_applicable", "rules"):
        ours, theirs = (json.dumps(item[name]).replace(str(folder), "someone/model") for item in (by_id, local))
        assert ours == theirs, name
    paths = of_hub(hub)
    assert len(paths) == len(set(paths)) <= most, paths
    lists = [path for path in paths if path.startswith("/api/")]
    assert len(lists) == (beside != "six megabytes")  # of an older tokenizer, the list of files tells what it has


def test_health_reads_the_classifier_and_no_more(tmp_path: Path) -> None:
    model = FAMILIES["bert"].build("BertForSequenceClassification", vocab_size=4000, num_labels=3)
    size = 4 * (model.classifier.weight.numel() + 3)
    model.save_pretrained(tmp_path / "model")
    files = files_of(tmp_path / "model")
    seen = {}
    for words in ("plain", "health"):
        with serve(Hub({"someone/model": files})) as hub:
            (found,) = run(HEALTH, hub.endpoint, tmp_path / words, [words])
            paths = of_hub(hub)
            seen[words] = found, sorted(set(paths)), len(paths), hub.weight_bytes()
    plain, health = seen["plain"], seen["health"]
    assert (plain[0]["health"], health[0]["health"]["bytes_read"]) == (None, size)
    assert health[1] == plain[1]
    assert health[2] <= plain[2] + 1
    assert health[3] - plain[3] <= 2 * size < len(files["model.safetensors"]) / 10
