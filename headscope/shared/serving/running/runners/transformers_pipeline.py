"""Runs texts through the pipeline of Transformers: PYTHON transformers_pipeline.py REQUEST.json ANSWER.json.

The pipeline tokenizes the texts: token IDs say only that the saved tokenizer makes them. The model is run in float32.
"""

import json
import sys
from pathlib import Path
from typing import Any

if str(Path(__file__).resolve().parent) in sys.path:  # there, files have the names of engines
    sys.path.remove(str(Path(__file__).resolve().parent))

import torch
import transformers


def _batch_answer(pipeline: Any, batch: dict[str, Any]) -> dict[str, Any]:
    places = {label: number for number, label in pipeline.model.config.id2label.items()}
    options = {"function_to_apply": "none"} if batch["raw"] else {}
    pipeline.tokenizer.padding_side = batch["padding"] or pipeline.tokenizer.padding_side
    texts = [
        {"text": item["text"]} if item["pair"] is None else {"text": item["text"], "text_pair": item["pair"]}
        for item in batch["items"]
    ]
    try:
        size = len(texts) if batch["padding"] else 1
        found = [
            rows if isinstance(rows, list) else [rows]
            for rows in pipeline(texts, top_k=None, batch_size=size, truncation=True, **options)
        ]
        scores = [[row["score"] for row in sorted(rows, key=lambda row: places[row["label"]])] for rows in found]
    except Exception as error:  # whatever the model or the pipeline raises
        return {"scores": [], "raw": batch["raw"], "error": f"{type(error).__name__}: {error}"}
    return {"scores": scores, "raw": batch["raw"], "error": ""}


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Makes what ANSWER.json holds."""
    answer = {"version": transformers.__version__, "error": "", "batches": [], "notes": []}
    try:
        pipeline = transformers.pipeline(
            "text-classification", model=request["folder"], dtype=torch.float32, device="cpu"
        )
        if request["batches"][0]["items"][0]["ids"] is not None:  # the saved tokenizer, whatever the family prefers
            pipeline.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(request["folder"])
    except (ImportError, MemoryError):  # says nothing about the checkpoint
        raise
    except Exception as error:  # whatever Transformers raises on a checkpoint that it doesn't take
        return {**answer, "error": f"{type(error).__name__}: {error}"}
    return {**answer, "batches": [_batch_answer(pipeline, batch) for batch in request["batches"]]}


if __name__ == "__main__":
    request_file, answer_file = map(Path, sys.argv[1:])
    answer_file.write_text(json.dumps(_answer_request(json.loads(request_file.read_text("utf-8")))), "utf-8")
