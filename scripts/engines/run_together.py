"""Runs several requests through an engine's script in one process: PYTHON run_together.py SCRIPT REQUEST ANSWER ...

PYTHON has the engine. An answer that the engine fails on, or ends the process on, is missing.
"""

import contextlib
import gc
import json
import runpy
import sys
import traceback
from pathlib import Path

script, *files = sys.argv[1:]
answer_to = runpy.run_path(script)["_answer_request"]
for request, answer in zip(files[::2], files[1::2], strict=True):
    try:
        found = answer_to(json.loads(Path(request).read_text("utf-8")))
        Path(answer).write_text(json.dumps(found), "utf-8")
    except Exception:
        traceback.print_exc()
    gc.collect()
    with contextlib.suppress(ImportError):
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
