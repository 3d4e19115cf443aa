"""Every hostile server through the command line: told what it is, in time, with the token kept and nothing written."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from hub import Hub, client_settings, serve

from hostile.corpus.case import CONFIG, safetensors
from hostile.servers import CASES, REPO, WEIGHTS, ServerCase
from hostile.test_corpus import active
from tests import warm

_SECONDS = 70


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_hostile_server_is_told_for_what_it_does(case: ServerCase, tmp_path: Path) -> None:
    weights = (
        {}
        if any(name.endswith(".safetensors") for name in case.files)
        else {"model.safetensors": safetensors(WEIGHTS, bytes(3200))}
    )
    files = {"config.json": json.dumps(CONFIG).encode()} | weights | case.files
    home = tmp_path / "deep" / "down"
    home.mkdir(parents=True)
    with serve(Hub({REPO: files}, answer=case.answer, **case.hub)) as hub:
        began = time.monotonic()
        ran = subprocess.run(
            [*warm.python(), "-m", "headscope", "snapshot", REPO, "-o", "out.json", "--json", *case.options],
            capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=tmp_path,
            env=client_settings(hub.endpoint, home, HF_TOKEN="hf_secret"),
        )  # fmt: skip
        seconds = time.monotonic() - began
    assert "Traceback" not in ran.stderr and "bug in" not in ran.stderr, ran.stderr
    document = json.loads(ran.stdout)
    assert ran.returncode == 3, (ran.stdout, ran.stderr)
    error = document.get("error", {})
    assert error.get("code", "") == case.code, document
    assert not case.code or error["hint"]
    assert all(word in ran.stdout + ran.stderr for word in case.words), (ran.stdout, ran.stderr)
    assert active(ran.stderr) <= {"\r"}
    assert "hf_secret" not in ran.stdout + ran.stderr
    assert not any(request.has_token for request in hub.log if request.origin == "cdn")
    assert {path.name for path in tmp_path.iterdir()} <= {"deep", "out.json"}
    assert {path.name for path in home.iterdir()} <= {"hf"}
    if case.options[:1] == ("--timeout",):
        assert seconds < float(case.options[1]) + 25
    assert hub.weight_bytes() < 300_000 or hub.ignore_range
