"""`headscope scan` of a Hub: what a listing names, at its commit, in few requests; later new commits alone."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub import COMMIT, MOVED, OWN_CACHE, Hub, Quota, client_settings, serve
from tables import rows_in, scan, small_bert

from tests.headers_only import header_of

AUTHOR = "team"
NAMES = tuple(f"{AUTHOR}/bert-{number}" for number in range(5))


@pytest.fixture(scope="module")
def files() -> dict[str, dict[str, bytes]]:
    base = small_bert()
    header, zeros = header_of(base)
    numbers = np.sin(np.arange(zeros // 4), dtype=np.float32).tobytes()
    found = {}
    for number, name in enumerate(NAMES):
        labels = {"id2label": {"0": f"no {number}", "1": "yes"}, "label2id": {f"no {number}": 0, "yes": 1}}
        config = json.dumps(base.config | labels).encode()
        found[name] = {"config.json": config, "model.safetensors": header + numbers}
    return found


def scanned(hub: Hub, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows that the table holds after a scan of its own process."""
    words = ["-o", "rows.jsonl", "--workers", "2", "-q", *arguments]
    done = scan(*words, folder=folder, settings=client_settings(hub.endpoint, folder))
    assert done.returncode in (0, 3), done.stderr
    return rows_in(folder / "rows.jsonl")


def requests_for(hub: Hub) -> Counter[str]:
    """Requests to the resolver by repository, and those to the API."""
    asked = [item for item in hub.log if item.origin == "hub" and not item.path.startswith(OWN_CACHE)]
    return Counter(
        "api" if item.path.startswith("/api/") else item.path.lstrip("/").partition("/resolve/")[0]
        for item in asked
        if not item.path.startswith("/api/agent")
    )


def test_a_listing_then_two_requests_a_checkpoint_and_new_commits_alone(
    files: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    with serve(Hub(repos=files, own_cache=True)) as hub:
        rows = scanned(hub, tmp_path, "--author", AUTHOR)
        assert sorted(row["reference"] for row in rows) == sorted(NAMES)
        assert {(row["verdict"], row["commit"], row["new"]) for row in rows} == {("passed", COMMIT, 0)}
        assert sorted(row["labels"][0] for row in rows) == [f"no {number}" for number in range(5)]
        counts = requests_for(hub)
        assert counts.pop("api") <= len(NAMES) / hub.page + 1, "a request for each page"
        assert counts == dict.fromkeys(NAMES, 2)
        # The head comes by one more range from where the resolver pointed to, and is counted.
        ranges = Counter(item.path for item in hub.log if item.origin != "hub" and "safetensors" in item.path)
        assert sum(ranges.values()) == 2 * len(NAMES), hub.log
        assert len({row["requests"] for row in rows}) == 1

        hub.log.clear()
        again = scanned(hub, tmp_path, "--author", AUTHOR, "--only-new")
        assert len(again) == len(NAMES)
        assert set(requests_for(hub)) == {"api"}

        hub.head, hub.moved = MOVED, files
        added = scanned(hub, tmp_path, "--search", NAMES[3], "--only-new")[len(NAMES) :]
        assert [(row["reference"], row["commit"]) for row in added] == [(NAMES[3], MOVED)]


def test_a_listing_and_a_revision_examine_that_revision(files: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    """A listing tells the commit of the main branch, which is another one by now; a name and a listing are one row."""
    with serve(Hub(repos=files, moved=files, head=MOVED)) as hub:
        rows = scanned(hub, tmp_path, "--author", AUTHOR, "--limit", "2", NAMES[0], "--revision", "v1")
    found = sorted((row["reference"], row["commit"], row["revision"]) for row in rows)
    assert found == [(name, COMMIT, "v1") for name in NAMES[:2]]


def test_all_workers_stay_within_what_the_hub_allows(files: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    """Five checkpoints of three requests each, and a Hub that allows six in four seconds."""
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(NAMES))
    with serve(Hub(repos=files, own_cache=True, quota=Quota(6, seconds=4))) as hub:
        rows = scanned(hub, tmp_path, "--from", str(listed))
        assert [row["not_determined"] for row in rows] == [None] * len(NAMES)
        assert hub.quota.refused == 0
        assert max(hub.quota.taken) <= 6
        assert "api" not in requests_for(hub)
