"""The site of the page "Look at a checkpoint" alone, used in Chromium, and checkpoints to look at there."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.docs.look_cases import looked_at
from tests.docs.test_site import ROOT, build
from tests.headers_only import Checkpoint, header_of
from tests.hub import Hub, serve
from tests.sweeps.census import Hollow

BERT = "BertForSequenceClassification"


def structure(name: str) -> dict[str, Any]:
    """The first shipped structure of a class that any number of classes may have, stated or asked for, in float32.

    A sample of the store has no answers in other number formats.
    """
    found: dict[str, Any] = next(
        entry
        for entry in looked_at()
        if entry["config"]["architectures"][1] == [name]
        and any(item["for"][1] == "many" for item in entry["forms"][0]["answers"][0])
    )
    return found | {"dtypes": ["float32"]}


def files_of(checkpoint: Checkpoint, **config: Any) -> dict[str, Any]:
    header, zeros = header_of(checkpoint)
    text = json.dumps({**checkpoint.config, **config}).encode()
    return {"config.json": text, "model.safetensors": Hollow(header, zeros)}


def write_project(project: Path) -> None:
    """What a site of this page, and of those that it leads to, is built from."""
    (project / "docs").mkdir()
    for name in ("js", "css", "images/favicon.svg", "look.md"):
        copy = ["cp", "-r", "--parents", name, str(project / "docs")]
        subprocess.run(copy, cwd=ROOT / "docs", check=True)
    (project / "docs" / "index.md").write_text("# Start\n", encoding="utf-8")
    (project / "docs" / "cli.md").write_text("# C\n\n## headscope inspect\n\n## headscope check\n", encoding="utf-8")
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    nav = 'nav = [{ "Start" = "index.md" }, { "Look" = "look.md" }, { "C" = "cli.md" }]\n'
    settings = re.sub(r"^nav = \[.*?^\]\n", nav, settings, flags=re.DOTALL | re.MULTILINE)
    settings = settings.replace('pymdownx.snippets.auto_append = ["scripts/house/words/tooltips.md"]', "")
    (project / "zensical.toml").write_text(settings, encoding="utf-8")


def used(project: Path, hub: Hub, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a browser tells of each step on the site that is built for a Hub."""
    with serve(hub):
        ran = build(project, "--hub", hub.endpoint, "--hub", hub.cdn)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return browsed(project / "site", steps)


def browsed(site: Path, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a browser tells of each step on a site that is built."""
    plan = site.parent / "plan.json"
    plan.write_text(json.dumps(steps), encoding="utf-8")
    command = ["node", str(ROOT / "tests" / "docs" / "look_browser.mjs"), str(site), str(plan)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]
