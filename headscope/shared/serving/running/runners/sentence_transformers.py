"""Runs texts through CrossEncoder: PYTHON sentence_transformers.py REQUEST.json ANSWER.json.

PYTHON has sentence-transformers, which tokenizes the texts, so token IDs are not used. The model is run in float32.
"""

import json
import sys
from pathlib import Path
from typing import Any

if str(Path(__file__).resolve().parent) in sys.path:  # there, this file has the engine's name
    sys.path.remove(str(Path(__file__).resolve().parent))

import sentence_transformers
import torch
import transformers


def _batch_answer(encoder: Any, batch: dict[str, Any]) -> dict[str, Any]:
    texts = [item["text"] if item["pair"] is None else (item["text"], item["pair"]) for item in batch["items"]]
    options = {"activation_fn": torch.nn.Identity()} if batch["raw"] else {}
    encoder.tokenizer.padding_side = batch["padding"] or encoder.tokenizer.padding_side
    if batch["padding"] and isinstance(texts[0], str):
        error = "CrossEncoder takes several texts only as pairs, so texts alone can't be padded"
        return {"scores": [], "raw": batch["raw"], "error": error}
    parts = [texts] if batch["padding"] else [text if isinstance(text, str) else [text] for text in texts]
    try:
        found = [torch.as_tensor(encoder.predict(part, show_progress_bar=False, **options)) for part in parts]
    except Exception as error:  # whatever the model raises
        return {"scores": [], "raw": batch["raw"], "error": f"{type(error).__name__}: {error}"}
    scores = torch.cat([rows.flatten() for rows in found]).reshape(len(texts), -1).tolist()
    return {"scores": scores, "raw": batch["raw"], "error": ""}


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Makes what ANSWER.json holds."""
    answer = {"version": sentence_transformers.__version__, "error": "", "batches": [], "notes": []}
    try:
        encoder = sentence_transformers.CrossEncoder(
            request["folder"], device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32}
        )
        if request["batches"][0]["items"][0]["ids"] is not None:  # the saved tokenizer, whatever the family prefers
            encoder[0].processor = transformers.PreTrainedTokenizerFast.from_pretrained(request["folder"])
    except (ImportError, MemoryError):  # says nothing about the checkpoint
        raise
    except Exception as error:  # whatever the library raises on a checkpoint that it doesn't take
        return {**answer, "error": f"{type(error).__name__}: {error}"}
    return {**answer, "batches": [_batch_answer(encoder, batch) for batch in request["batches"]]}


if __name__ == "__main__":
    request_file, answer_file = map(Path, sys.argv[1:])
    answer_file.write_text(json.dumps(_answer_request(json.loads(request_file.read_text("utf-8")))), "utf-8")
