"""The page "Look at a checkpoint" in Chromium, where names from outside are endless, hidden, or meant for a shell."""

import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from hostile.corpus.case import safetensors

from tests.api.lookup.test_shipped import checkpoint_of
from tests.docs.look_site import BERT, files_of, structure, used
from tests.docs.test_look_foreign import HOSTILE, run_in_shell
from tests.hub import Answer, Hub

LONG = "\u202e" + "x" * 60_000
"""A name of 60,001 characters that turns the line around."""
HIDDEN = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
TALLEST = {390: 4_500, 1280: 3_200}
"""Pixels of an answer in a window of this width, with everything unfolded; without such names 3,000 and 2,300."""


def labeled(names: list[str]) -> dict[str, Any]:
    """A classifier with these labels."""
    good = files_of(checkpoint_of(structure(BERT), len(names), random.Random(2)))
    ids, back = {str(at): name for at, name in enumerate(names)}, {name: at for at, name in enumerate(names)}
    return {
        **good,
        "config.json": json.dumps({**json.loads(good["config.json"]), "id2label": ids, "label2id": back}).encode(),
    }


def repos_of_long_names() -> dict[str, Any]:
    """Repositories with a name that is too long or that turns the line around, each in another place."""
    good = files_of(checkpoint_of(structure(BERT), 3, random.Random(2)))
    config = json.loads(good["config.json"])
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
    return {
        "o/label": labeled([LONG, "b", "c"]),
        "o/labels": labeled([f"{at}{LONG[:60]}" for at in range(9_000)]),
        "o/spaces": labeled(["a" + "\u3000" * 5_000, "b\u0301" * 500, "c"]),
        "o/too-many": labeled([f"label {at}" for at in range(10_001)]),
        "o/tensor": {**good, "model.safetensors": safetensors({LONG: entry})},
        "o/entry": {**good, "model.safetensors": safetensors({LONG: 1})},
        "o/key": {**good, "config.json": f'{{"{LONG}": 1, "{LONG}": 2}}'.encode()},
        "o/type": {**good, "config.json": json.dumps({**config, "model_type": LONG}).encode()},
        "o/value": {**good, "config.json": json.dumps({**config, "hidden_act": LONG, LONG: LONG}).encode()},
        "o/file": {**good, LONG: b"", "a\x1b[2J\u202e": b""},
        "o/body": good,
    }


def test_no_name_from_outside_widens_or_lengthens_the_page_or_is_shown_raw(project: Path) -> None:
    def answer(origin: str, method: str, path: str) -> Answer | None:
        return (500, {"Content-Type": "text/html"}, LONG.encode()) if path.startswith("/o/body/") else None

    hub = Hub(repos_of_long_names(), cors=True, own_cache=True, answer=answer)
    typed = ["a\u202eb", "o/" + "x" * 60_000, "o/m@" + "x" * 60_000, "o/m@" + "\u202e" * 200, "\u3000x" * 450]
    look = {"open": True, "wide": [390, 1280], "axe": True}
    visits = [{"name": name, "visit": f"?model={name}", **look} for name in hub.repos]
    visits += [{"name": text[:20], "visit": f"?{urlencode({'model': text[:9_000]})}", **look} for text in typed]
    visits += [{"name": f"typed {text[:20]}", "ask": {"model": text}, **look} for text in typed]
    told = used(project, hub, visits)
    assert [(one["name"], one["wider"]) for one in told if max(one["wider"].values()) > 0] == []
    tall = {one["name"]: {int(width): height for width, height in one["tall"].items()} for one in told}
    print(tall)
    assert {name: one for name, one in tall.items() if any(one[width] > TALLEST[width] for width in TALLEST)} == {}
    assert [(one["name"], found[0]) for one in told if (found := HIDDEN.search(one["whole"]))] == []
    assert [(one["name"], one["axe"]) for one in told if one["axe"]] == []
    shown = {one["name"]: one["shown"] for one in told}
    assert r"\u202exxx" in shown["o/label"]
    assert "(60,001 characters)" in shown["o/label"]
    assert '(60,001 characters)" begins at 4 where 0 was expected' in shown["o/tensor"]
    assert '(60,001 characters)" occurs twice' in shown["o/key"]
    assert "All 9,000 labels" in shown["o/labels"]
    assert "more classes than this page knows" in shown["o/too-many"]
    assert "The Hub answered 500" in shown["o/body"]
    assert "Head fully loaded" in shown["o/file"]


def test_a_shown_command_runs_headscope_alone_on_what_was_named(project: Path, tmp_path: Path) -> None:
    """Whatever a link names: no command is shown, or one that a shell takes as it was meant."""
    good = files_of(checkpoint_of(structure(BERT), 3, random.Random(2)))
    hub = Hub({"o/bert": good, "nobody/x": good}, cors=True, own_cache=True)
    linked = ["nobody/x@;echo${IFS}pwned", "nobody/x@a\nid", "$(id)/x", "o/bert", "o/bert@v1"]
    typed = [*(f"nobody/x@{text}" for text in HOSTILE), *HOSTILE, "o/bert@a#1", "o/bert@refs/pr/1"]
    steps = [{"name": text, "visit": f"?{urlencode({'model': text})}"} for text in linked]
    steps += [{"name": text.strip(), "ask": {"model": text}} for text in typed if text.strip()]
    told = used(project, hub, steps)
    for one in told:
        for command in one["commands"]:
            ran = run_in_shell(command, tmp_path)
            assert len(ran) == 1, command
            assert ran[0][0] in {"inspect", "check", "explain"}, command
            assert ran[0][0] == "explain" or ran[0][1] == one["name"], command
    shown = {one["name"]: one["commands"] for one in told}
    assert not shown["nobody/x@;echo${IFS}pwned"]
    assert len(shown["o/bert@v1"]) == 2
    assert shown["o/bert@refs/pr/1"] == ["headscope inspect o/bert@refs/pr/1"]
    assert shown["o/bert@a#1"] == ["headscope inspect 'o/bert@a#1'"]
