"""A command in a warm fork ends, prints and reads as the same command in a process that is started."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import warm
from tests.warm.server import without_settings

pytestmark = pytest.mark.skipif(not warm.FORKS, reason="forks of a warm process need pidfd_open")
SEEN = "import os, sys; print(os.getcwd(), os.environ['WARM'], sys.argv[1:], sys.stdin.read(), __name__, end='')"
CASES = {
    "what it sees": ["-c", SEEN, "a", "b c"],
    "a file read from its stdin, on stderr": ["-c", "import sys; sys.stderr.write(sys.stdin.read())"],
    "an exit code": ["-c", "import sys; sys.exit(7)"],
    "a sentence at its end": ["-c", "import sys; sys.exit('so it ends')"],
    "what is registered for the end": ["-c", "import atexit; atexit.register(print, 'bye'); print('begun')"],
    "a thread that takes longer": ["-c", "import threading; threading.Timer(0.1, lambda: print('late')).start()"],
    "a path that is safe": ["-P", "-c", "import os, sys; print(sys.argv, {'', os.getcwd()} & set(sys.path))"],
    "a module": ["-m", "headscope", "explain", "HS102", "--json"],
    "a usage error": ["-m", "headscope", "inspect"],
    "a signal": ["-c", "import os; os.kill(os.getpid(), 15)"],
    "a kill": ["-c", "import os; os.kill(os.getpid(), 9)"],
}


def ran(python: list[str], words: list[str], folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [*python, *words], cwd=folder, env=os.environ | {"WARM": "é\n"}, input="given", capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", CASES.values(), ids=list(CASES))
def test_a_fork_does_what_a_process_does(words: list[str], tmp_path: Path) -> None:
    assert ran(warm.python(warm.LIGHT), words, tmp_path) == ran([sys.executable], words, tmp_path)


def test_a_traceback_ends_with_1(tmp_path: Path) -> None:
    code, _, err = ran(warm.python(warm.LIGHT), ["-c", "1 / 0"], tmp_path)
    assert code == 1
    assert err.endswith("ZeroDivisionError: division by zero\n")


def test_nothing_of_one_run_is_there_in_the_next(tmp_path: Path) -> None:
    python = warm.python(warm.LIGHT)
    assert ran(python, ["-c", "import os, headscope; os.environ['LEFT'] = headscope.left = 'x'"], tmp_path)[0] == 0
    look = "import os, headscope; print('LEFT' in os.environ, 'left' in vars(headscope))"
    assert ran(python, ["-c", look], tmp_path)[1] == "False False\n"


def test_the_light_server_has_read_no_settings_of_the_hub(tmp_path: Path) -> None:
    look = "import sys; print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    assert ran(warm.python(warm.LIGHT), ["-c", look], tmp_path)[1] == "[]\n"


_SETTINGS = """
import json, sys
import transformers.modeling_utils, huggingface_hub.hf_api
import huggingface_hub.utils._cache_manager, huggingface_hub.utils.tqdm
from huggingface_hub import get_token
from headscope.shell import main
main(["env", "--json"])
readers = ("huggingface_hub", "transformers.utils.hub", "transformers.dynamic_module_utils")
plain = (str, int, float, bool, type(None))
for name in sorted(name for name in sys.modules if name.startswith(readers)):
    if "inference" not in name and "cli" not in name:
        found = {key: value for key, value in vars(sys.modules[name]).items() if isinstance(value, plain)}
        print(name, sorted((key, value) for key, value in found.items() if key not in ("SESSION_ID", "__cached__")))
print(get_token(), huggingface_hub.hf_api.api.endpoint, huggingface_hub.constants.HF_HUB_OFFLINE)
"""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/tmp/nowhere", "HF_TOKEN": "hf_x", "HF_HUB_OFFLINE": "1"},
        {"HF_HUB_CACHE": "/tmp/none", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_ETAG_TIMEOUT": "3"},
    ],
    ids=["none", "another Hub", "another cache"],
)
def test_a_fork_has_the_settings_of_the_hub_that_a_process_reads(settings: dict[str, str], tmp_path: Path) -> None:
    environment = without_settings(dict(os.environ)) | settings
    cold, fork = (
        subprocess.run(
            [*python, "-c", _SETTINGS], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for python in ([sys.executable], warm.python(environment=environment))
    )
    assert [line for line in cold if line not in fork] == []


def test_headscope_is_imported_anew_where_that_is_asked_for(tmp_path: Path) -> None:
    look = "import sys; print('headscope.shell.app' in sys.modules)"
    assert ran(warm.python(warm.LIGHT), ["-c", look], tmp_path)[1] == "True\n"
    assert ran(warm.python(warm.LIGHT, anew=True), ["-c", look], tmp_path)[1] == "False\n"


def test_the_fork_ends_with_the_one_who_asked(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    asking = subprocess.Popen([*warm.python(warm.LIGHT), "-c", code])
    until = time.monotonic() + 30
    while not (file.exists() and file.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    while Path(f"/proc/{file.read_text()}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{file.read_text()}").exists()


@pytest.mark.parametrize("sent", ["nothing", "a part of what it asks", "all, and it reads no answer"])
def test_the_others_go_on_where_one_who_asks_is_killed(sent: str, tmp_path: Path) -> None:
    python = warm.python(warm.LIGHT)
    folder, text = tmp_path / "done", b""
    if sent != "nothing":
        code = f"import os; os.mkdir({str(folder)!r})"
        request = {"words": ["-c", code], "folder": "/", "environment": dict(os.environ), "memory": (-1, -1)}
        text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(python[-1])
        if text:
            socket.send_fds(asking, [len(text).to_bytes(8, "big")], [0, 1, 2])
            asking.sendall(text[: len(text) // 2] if "part" in sent else text)
        until = time.monotonic() + 30
        while "all" in sent and not select.select([asking], [], [], 0.05)[0] and time.monotonic() < until:
            pass
    assert folder.exists() == ("all" in sent)
    assert ran(python, ["-c", "print('here')"], tmp_path) == (0, "here\n", "")


STARTED = """
from headscope.core.workers import Worker
with Worker() as worker:
    print(worker.call(eval, "'torch' in __import__('sys').modules"))
"""


@pytest.mark.parametrize("is_cold", [False, True])
def test_what_headscope_starts_is_a_fork_too_unless_it_is_to_be_cold(
    is_cold: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_cold:
        monkeypatch.setenv(warm.COLD, "1")
    exec(STARTED)
    assert capsys.readouterr().out == ran(warm.python(), ["-c", STARTED], tmp_path)[1] == f"{not is_cold}\n"
