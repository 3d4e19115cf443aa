"""What the page "Look at a checkpoint" makes of text and headers from outside: its modules, run by Node.js."""

import json
import math
import os
import random
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hostile.corpus.case import ONE_TENSOR, checkpoint, safetensors
from hostile.corpus.headers import CASES

from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.core.words.safe import safe
from headscope.errors import Malformed
from tests.docs.look_page import NodeScript
from tests.hub import COMMIT, Answer, Hub, serve

ROOT = Path(__file__).resolve().parents[2]
HUB = "https://huggingface.co"
HOSTILE = (
    ";echo${IFS}pwned", "$(touch pwned)", "`touch pwned`", "a\ntouch pwned", "a'b", 'a"b', "'; touch pwned; '", "-o",
    "--help", "&&touch pwned", "|touch pwned", "a b", "~", "~root", "*", "?", "[a]", "{a,b}", "!!", "#", "a#b", "<x",
    ">x", "\\", "a\\",
    "$HOME", "%PATH%", "=x", "\u202eevil", "\u200b", "\u00e9x", "\x1b[2J", "\t", "a\r\nb", "\U0001f642",
    "", "..", "a/../b",
)  # fmt: skip
"""Texts that a shell or a terminal acts on, or that would be an option or a path."""
LARGEST = 1_000_000
"""Bytes of a header that the page reads; of a configuration, twice as many."""
SECONDS = 1.0
"""Of a processor, for a header or a configuration of the largest size: the slowest took 0.4 and 0.6."""


@pytest.fixture(scope="module")
def modules() -> Iterator["Modules"]:
    found = Modules()
    yield found
    found.close()


class Modules(NodeScript):
    """The page's modules in a process of Node.js."""

    def __init__(self) -> None:
        folder = str(ROOT / "docs" / "js" / "look")
        super().__init__("look_modules.mjs", folder, json.dumps(SAFETENSORS), parse_int=float)  # as JavaScript has them

    def quickest(self, folder: Path) -> dict[str, Any]:
        """What is said of a checkpoint, the first time that it takes no longer than it may, of three."""
        answers = (self.answer(folder=str(folder)) for _ in range(3))
        return next((one for one in answers if one["milliseconds"] < SECONDS * 1000), {"milliseconds": math.inf})

    def value(self, module: str, call: str, *arguments: Any) -> Any:
        return self.answer(module=module, call=call, **{"with": arguments})["value"]


def run_in_shell(command: str, folder: Path) -> list[list[str]]:
    """The arguments of each time that `headscope` ran, when a shell ran a command in an empty folder."""
    stubs = folder / "stubs"
    stubs.mkdir(exist_ok=True)
    stub, log = stubs / "headscope", folder / "log"
    report = "import json, sys; print(json.dumps(sys.argv[2:]), file=open(sys.argv[1], 'a'))"
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} -Sc "{report}" {shlex.quote(str(log))} "$@"\n', encoding="utf-8")
    stub.chmod(0o755)
    log.write_text("", encoding="utf-8")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    ran = subprocess.run(
        ["sh", "-c", command], cwd=work, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": f"{stubs}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr, list(work.iterdir())) == (0, "", "", []), command
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_a_shell_takes_a_command_apart_into_its_words(modules: Modules, tmp_path: Path) -> None:
    for text in (*HOSTILE, *(f"o/m@{text}" for text in HOSTILE)):
        command = modules.value("foreign", "commandLine", ["headscope", "inspect", text, "--num-labels", "3"])
        assert command == shlex.join(["headscope", "inspect", text, "--num-labels", "3"])
        assert run_in_shell(command, tmp_path) == [["inspect", text, "--num-labels", "3"]]


@pytest.mark.parametrize("form", ["o/m@{}", "{}", "{}/m", "o/{}", "hf://o/m@{}", f"{HUB}/o/m/tree/{{}}", f"{HUB}/{{}}"])
def test_a_reference_is_refused_or_is_one_argument(modules: Modules, tmp_path: Path, form: str) -> None:
    accepted = 0
    for text in (*HOSTILE, "main", "v1.0", "refs/pr/1", "a+b%c"):
        told = modules.answer(module="hub", call="referenceOf", **{"with": [form.format(text), HUB]})
        if "error" in told:
            assert told["kind"] == "reference"
            assert told["error"].startswith("This is not a ")
            continue
        reference = told["value"]
        named = f"{reference['reference']}@{reference['revision']}" if reference["revision"] else reference["reference"]
        assert safe(named) == named
        command = modules.value("answer", "inspectCommand", reference, None)
        assert run_in_shell(command, tmp_path) == [["inspect", named]]
        accepted += 1
    assert accepted, "nothing was accepted"


@pytest.mark.parametrize(
    "revision",
    [";echo${IFS}pwned", "$(id)", "`id`", "-x", "a..b", "/a", "a/", ".", "a//b", "\u202e", "\u00e9x", "x" * 256],
)
def test_a_revision_that_nobody_has_is_refused(modules: Modules, revision: str) -> None:
    told = modules.answer(module="hub", call="referenceOf", **{"with": [f"nobody/x@{revision}", HUB]})
    assert told["kind"] == "reference"
    assert "not a revision that the page takes" in told["error"]


@pytest.mark.parametrize(
    "revision", ["main", "v1.0", "refs/pr/1", "0123abc", "a#1", "release-2024_01+cu118", "x" * 255]
)
def test_an_usual_revision_is_taken(modules: Modules, revision: str) -> None:
    assert modules.value("hub", "referenceOf", f"o/m@{revision}", HUB) == {"reference": "o/m", "revision": revision}


@pytest.mark.parametrize(
    "typed", ["hf:o/m", "hf://o/m", "o/m/", "huggingface.co/o/m", "hf.co/o/m/", "https://huggingface.co/o/m/tree/main/"]
)
def test_what_people_paste_is_taken(modules: Modules, typed: str) -> None:
    assert modules.value("hub", "referenceOf", typed, HUB)["reference"] == "o/m"


def test_an_id_is_no_longer_than_the_hub_allows(modules: Modules) -> None:
    assert modules.value("hub", "referenceOf", f"o/{'m' * 94}", HUB)["revision"] is None
    assert modules.answer(module="hub", call="referenceOf", **{"with": [f"o/{'m' * 95}", HUB]})["kind"] == "reference"


def test_what_is_hidden_is_what_python_hides(modules: Modules) -> None:
    """Of every character that Python's Unicode has; a newer one assigns more."""
    assigned = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) != "Cn"]
    text = "a".join(assigned)  # halves of surrogate pairs must not stand side by side
    assert modules.value("foreign", "safe", text) == safe(text)


def test_a_long_text_is_its_two_ends_and_its_length(modules: Modules) -> None:
    told = modules.value("foreign", "brief", "a" * 30_000 + "\u202e" + "b" * 29_999)
    assert told == f"{'a' * 80}\u2026{'b' * 80} (60,000 characters)"
    assert modules.value("foreign", "brief", "a" * 160) == "a" * 160
    smiles = modules.value("foreign", "brief", "x" + "\U0001f642" * 100)
    assert "\\ud83d" not in smiles
    assert smiles.endswith(" (101 characters)")


# ---- headers


def tensors_of(path: Path) -> Any:
    """What Python reads of a header: key, dtype and shape, or None for a file that is not valid."""
    try:
        found = read_safetensors_header(LocalBytes(path, path.name))
    except Malformed:
        return None
    return [{"key": item.key, "dtype": item.dtype, "shape": list(map(float, item.shape))} for item in found]


def written(folder: Path, content: bytes) -> Path:
    return checkpoint(folder, {"model.safetensors": content})


def headers() -> Iterator[tuple[str, bytes]]:
    """Headers at the borders of what the official parser takes."""
    place = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    fine = json.dumps(ONE_TENSOR)
    yield "fine", safetensors(fine.encode())
    yield "by place", safetensors(b'{"x":["F32",[1],[0,4]]}')
    yield "too few by place", safetensors(b'{"x":["F32",[1]]}')
    yield "unknown field twice", safetensors(b'{"x":{"a":1,"a":[],"dtype":"F32","shape":[1],"data_offsets":[0,4]}}')
    yield "field twice", safetensors(b'{"x":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}')
    yield "metadata twice", safetensors(b'{"__metadata__":null,"__metadata__":null,%s}' % fine[1:-1].encode())
    yield "metadata of null", safetensors({"__metadata__": None, **ONE_TENSOR})
    yield "key of metadata twice", safetensors(b'{"__metadata__":{"a":"b","a":"c"},%s}' % fine[1:-1].encode())
    levels = {f"{count} levels": "[" * count + "]" * count for count in (125, 126, 127, 128)}
    values = {"NaN": "NaN", "1e999": "1e999", "1e99": "1e99", "400 digits": "9" * 400, "a half": '["\\udc00"]'}
    for name, value in (values | levels).items():
        text = f'{{"x":{{"a":{value},"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}'
        yield f"{name} beside", safetensors(text.encode())
    yield "a half in metadata", safetensors(b'{"__metadata__":{"\\ud800":""},%s}' % fine[1:-1].encode())
    yield "no dimension", safetensors({"x": {**place, "shape": []}})
    yield "minus zero offset", safetensors(b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}')
    for shape in ([2**53, 0], [2**60, 0], [2**64 - 1, 0], [2**64, 0], [2**63, 2, 0], [0, 2**63, 2]):
        yield f"{shape}", safetensors({"x": {**place, "shape": shape, "data_offsets": [0, 0]}}, b"")
    yield "bits overflow", safetensors({"x": {**place, "shape": [2**60], "data_offsets": [0, 2**62]}}, b"")
    yield "half a byte", safetensors({"x": {**place, "dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"\0")
    yield "two of four bits", safetensors({"x": {**place, "dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, b"\0")
    yield "nothing stored", safetensors({}, b"")
    yield "spaces around", safetensors(b" \n" + fine.encode() + b"  ")


def test_a_header_is_valid_where_it_is_for_python(modules: Modules, tmp_path: Path) -> None:
    """Those of the corpus, and those at the borders; the page reads fewer bytes."""
    borders = ((name, partial(written, content=content)) for name, content in headers())
    wrong, valid = [], 0
    for at, (name, build) in enumerate((*((case.id, case.build) for case in CASES), *borders)):
        (folder := tmp_path / str(at)).mkdir()
        build(folder)
        place = folder / "checkpoint"
        told, expected = modules.answer(folder=str(place)), tensors_of(place / "model.safetensors")
        valid += expected is not None
        if told.get("kind") != "header too large" and told.get("value") != expected:
            wrong.append(f"{name}: {told} where {expected} was expected")
    assert not wrong, wrong
    assert valid >= 10


def test_a_header_with_one_thing_changed_is_read_as_python_reads_it(modules: Modules, tmp_path: Path) -> None:
    draw = random.Random(3)
    fine = json.dumps(
        {"__metadata__": {"a": "b"}, "y": {"dtype": "F16", "shape": [2, 1], "data_offsets": [4, 8]}, **ONE_TENSOR}
    )
    folder = written(tmp_path, b"")
    wrong = []
    for _ in range(400):
        at = draw.randrange(len(fine))
        text = fine[:at] + draw.choice(["", *'"{}[],:0129-.eE\\ \n', fine[draw.randrange(len(fine))]]) + fine[at + 1 :]
        (folder / "model.safetensors").write_bytes(safetensors(text.encode(), b"\0" * 8))
        told, expected = modules.answer(folder=str(folder)), tensors_of(folder / "model.safetensors")
        if told.get("value") != expected:
            wrong.append(f"{text}: {told} where {expected} was expected")
    assert not wrong, wrong[:5]


def repeated(form: str, length: int, before: str = "", after: str = "") -> bytes:
    """A text of nearly this length: `form`, with a number in it, again and again, between two others."""
    parts, at = [], 0
    while at < length - len(before) - len(after) - len(form) - 8:
        parts.append(form.replace("N", str(len(parts))))
        at += len(parts[-1]) + 1
    return (before + ",".join(parts) + after).encode()


PARTS_OF_HEADERS = 8


def worst_headers() -> Iterator[tuple[str, bytes]]:
    """Headers of the largest size that the page reads, each with much of one thing."""
    before, after = '{"x":{"dtype":"F32","shape":[', '],"data_offsets":[0,4]}}'
    for size in (*map(str, (0, 1, 9, 2**53 - 1, 2**53, 2**63, 2**64, 1.5, -1)), "9" * 300, "9" * 4_300):
        yield f"a shape of {size[:20]}", repeated(size, LARGEST, before, after)
    yield "2^53 in 0.7 MB", repeated(str(2**53), 700_000, before, after)
    yield "one number", (before + "9" * (LARGEST - 100) + after).encode()
    yield "a long fraction", (before + "0." + "9" * (LARGEST - 100) + after).encode()
    yield "tensors", repeated('"N":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}', LARGEST, "{", "}")
    yield "entries by place", repeated('"N":["U8",[],[0,1]]', LARGEST, "{", "}")
    yield "wrong entries", repeated('"N":0', LARGEST, "{", "}")
    yield "one key", repeated('"a":0', LARGEST, "{", "}")
    yield "fields", repeated('"dtype":0', LARGEST, '{"x":{', "}}")
    yield "metadata", repeated('"N":""', LARGEST, '{"__metadata__":{', "}}")
    yield "metadata twice", repeated('"__metadata__":null', LARGEST, "{", "}")
    yield "lists", repeated("[]", LARGEST, '{"x":[', "]}")
    yield "objects", repeated("{}", LARGEST, '{"x":[', "]}")
    yield "words", repeated("true", LARGEST, '{"x":[', "]}")
    yield "texts", repeated('""', LARGEST, '{"x":[', "]}")
    yield "escapes", repeated('"\\u202e"', LARGEST, '{"x":[', "]}")
    yield "a long name", f'{{"{"x" * (LARGEST - 100)}":{{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}}}'.encode()
    yield "a long hidden name", f'{{"{chr(0x202E) * (LARGEST // 3 - 100)}":{{"dtype":"U8","shape":[1]}}}}'.encode()
    yield "a long dtype", f'{{"x":{{"dtype":"{"x" * (LARGEST - 100)}","shape":[1],"data_offsets":[0,1]}}}}'.encode()
    yield "an open text", ('{"' + "\\n" * (LARGEST // 2 - 10)).encode()
    yield "brackets", b'{"x":' + b"[" * (LARGEST - 10)
    yield "deep and wide", b'{"x":' + b"[" * 100 + b"[0]," * (LARGEST // 4 - 100) + b"0" + b"]" * 100 + b"}"
    yield "spaces", b"{" + b" " * (LARGEST - 10) + b"}"


@pytest.mark.parametrize("part", range(PARTS_OF_HEADERS))
def test_no_header_that_the_page_reads_takes_a_second(part: int, modules: Modules, tmp_path: Path) -> None:
    folder = written(tmp_path, b"")
    slow: dict[str, float] = {}
    sentences: dict[str, str] = {}
    for name, header in islice(worst_headers(), part, None, PARTS_OF_HEADERS):
        assert len(header) <= LARGEST
        (folder / "model.safetensors").write_bytes(safetensors(header))
        told = modules.quickest(folder)
        slow[name], sentences[name] = told["milliseconds"], told.get("error", "")
        assert told.get("kind") != "header too large"
        assert (tensors_of(folder / "model.safetensors") is None) == ("error" in told), name
    print({name: round(took) for name, took in sorted(slow.items(), key=lambda item: -item[1])})
    assert {name: took for name, took in slow.items() if took > SECONDS * 1000} == {}
    assert {name: text for name, text in sentences.items() if len(text) > 2_500} == {}
    assert "overflows" in sentences.get("2^53 in 0.7 MB", "overflows")


def test_no_configuration_that_the_page_reads_takes_a_second(modules: Modules, tmp_path: Path) -> None:
    shapes = ('"N":1', '"N":"N"', '"N":[[[[1]]]]', '"a":1', '"N":' + "9" * 4_300, '"N":{"N":{}}')
    texts = [repeated(shape, 2 * LARGEST, "{", "}") for shape in shapes]
    texts += [
        b'{"a":' + b"9" * (2 * LARGEST - 10) + b"}",
        b'{"a":' + b"[" * 120 + b"0," * (LARGEST - 200) + b"0" + b"]" * 120 + b"}",
    ]
    for text in texts:
        (folder := tmp_path / "checkpoint").mkdir(exist_ok=True)
        (folder / "config.json").write_bytes(text)
        (folder / "model.safetensors").write_bytes(safetensors(ONE_TENSOR))
        took = modules.quickest(folder)["milliseconds"]
        print(text[:30], round(took))
        assert took < SECONDS * 1000, text[:60]


# ---- ranges

_WEIGHTS = safetensors(ONE_TENSOR)
_SIZE = len(_WEIGHTS)
_LAST = _SIZE - 1
PARTS: dict[str, tuple[int, str | None, bytes, str]] = {
    "right": (206, f"bytes 0-{_LAST}/{_SIZE}", _WEIGHTS, ""),
    "of any size": (206, f"bytes 0-{_LAST}/*", _WEIGHTS, "no size"),
    "elsewhere, of any size": (206, "bytes 100-65635/*", _WEIGHTS, "no size"),
    "unsaid": (206, None, _WEIGHTS, "other part"),
    "elsewhere": (206, f"bytes 1-{_LAST}/{_SIZE}", _WEIGHTS[1:], "other part"),
    "longer": (206, f"bytes 0-{_LAST + 1}/{_SIZE}", _WEIGHTS + b"\0", "other part"),
    "shorter": (206, f"bytes 0-{_LAST - 1}/{_SIZE}", _WEIGHTS[:-1], "other part"),
    "of a larger file": (206, f"bytes 0-{_LAST}/{_SIZE + 1}", _WEIGHTS, "other part"),
    "in other units": (206, f"items 0-{_LAST}/{_SIZE}", _WEIGHTS, "other part"),
    "without units": (206, f"0-{_LAST}/{_SIZE}", _WEIGHTS, "other part"),
    "of two parts": (206, f"bytes 0-1,2-{_LAST}/{_SIZE}", _WEIGHTS, "other part"),
    "negative": (206, f"bytes -0-{_LAST}/{_SIZE}", _WEIGHTS, "other part"),
    "not satisfied": (206, f"bytes */{_SIZE}", _WEIGHTS, "other part"),
    "with more body": (206, f"bytes 0-{_LAST}/{_SIZE}", _WEIGHTS + b"\0", "cut"),
    "with less body": (206, f"bytes 0-{_LAST}/{_SIZE}", _WEIGHTS[:-1], "cut"),
    "whole": (200, f"bytes 0-{_LAST}/{_SIZE}", _WEIGHTS, "whole"),
    "created": (201, f"bytes 0-{_LAST}/{_SIZE}", _WEIGHTS, "status"),
    "empty": (204, f"bytes 0-{_LAST}/{_SIZE}", b"", "status"),
}
"""What a server sends for the first part of the weights, and one word for what the page says to that."""


def repository_of(part: str) -> str:
    return f"o/{part.replace(' ', '-').replace(',', '')}"


def hub_of_parts() -> Hub:
    config = {"config.json": b"{}", "model.safetensors": _WEIGHTS}

    def answer(origin: str, method: str, path: str) -> Answer | None:
        name = next((name for name in PARTS if f"/{repository_of(name)}/" in path), "")
        if origin != "cdn" or not name:
            return None
        status, sent, body, _ = PARTS[name]
        return status, {"Content-Range": sent} if sent is not None else {}, body

    return Hub({repository_of(name): config for name in PARTS}, own_cache=True, answer=answer)


def test_a_part_is_read_only_if_it_is_the_one_that_was_requested(modules: Modules) -> None:
    with serve(hub_of_parts()) as hub:
        told = {name: modules.answer(hub=hub.endpoint, reference=repository_of(name)) for name in PARTS}
    assert {name: one.get("kind", "") for name, one in told.items()} == {
        name: kind for name, (*_, kind) in PARTS.items()
    }
    assert told["right"]["value"] == [{"key": "x", "dtype": "float32", "shape": [1]}]


def test_a_second_part_belongs_to_the_same_file(modules: Modules) -> None:
    entries = {f"tensor.{at}": {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]} for at in range(2_000)}
    weights = safetensors(entries, b"\0" * 2_000)
    sizes = [len(weights), len(weights)]

    def answer(origin: str, method: str, path: str) -> Answer | None:
        if origin != "cdn":
            return None
        begin = 0 if len(sizes) == 2 else 65_536
        last = 65_535 if begin == 0 else 7 + int.from_bytes(weights[:8], "little")
        return 206, {"Content-Range": f"bytes {begin}-{last}/{sizes.pop(0)}"}, weights[begin : last + 1]

    hub = Hub({"o/large": {"config.json": b"{}", "model.safetensors": weights}}, own_cache=True, answer=answer)
    with serve(hub):
        assert len(modules.answer(hub=hub.endpoint, reference="o/large")["value"]) == 2_000
        sizes[:] = [len(weights), len(weights) + 1]
        assert modules.answer(hub=hub.endpoint, reference="o/large")["kind"] == "commit"


@pytest.mark.parametrize("commit", ["..", "../../x", "main", "", COMMIT, "A" * 40])
def test_a_commit_is_a_hash_before_an_address_is_made_of_it(modules: Modules, commit: str) -> None:
    def answer(origin: str, method: str, path: str) -> Answer | None:
        if "/api/models/" in path:
            names = [{"rfilename": name} for name in ("config.json", "model.safetensors")]
            return 200, {}, json.dumps({"sha": commit, "siblings": names}).encode()
        return (200, {"X-Repo-Commit": commit}, b"{}") if path.endswith("config.json") else None

    hub = Hub({"o/m": {"config.json": b"{}", "model.safetensors": _WEIGHTS}}, answer=answer)
    with serve(hub):
        told = modules.answer(hub=hub.endpoint, reference="o/m")
    asked = [request.path for request in hub.log if "model.safetensors" in request.path]
    assert (told.get("kind"), bool(asked)) == (("no commit", False) if commit != COMMIT else (None, True))
