"""Runs texts through ONNX Runtime: PYTHON onnx_runtime.py REQUEST.json ANSWER.json.

PYTHON has onnxruntime, and torch, transformers, onnx and onnxscript for the exporter of Transformers. The file is
FOLDER/onnx/model.onnx, in float32; PYTHON onnx_runtime.py FOLDER only writes it.
"""

import json
import sys
from pathlib import Path
from typing import Any

if str(Path(__file__).resolve().parent) in sys.path:  # there, files have the names of engines
    sys.path.remove(str(Path(__file__).resolve().parent))

_FILE = "onnx/model.onnx"


def _export_model(folder: Path) -> None:
    """Writes the ONNX file with the exporter of Transformers, for any number of texts and tokens."""
    import onnx
    import torch
    import transformers
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    name = json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
    words = [word for word, number in sorted(tokenizer.get_vocab().items()) if number not in tokenizer.all_special_ids]
    texts = [" ".join(words[:7]), " ".join(words[7:14])][: 1 if tokenizer.pad_token is None else 2]
    sample = dict(tokenizer(texts, return_tensors="pt", padding=len(texts) > 1))
    if sample["input_ids"].shape[1] == 1:  # a tokenizer that doesn't know these words: one token would stay one token
        sample = {key: value.repeat(1, 7) for key, value in sample.items()}
    exported = OnnxExporter().export(model, sample, config=OnnxConfig(dynamic=True))
    written = folder / "exported"
    exported.save_pretrained(written)
    (folder / "onnx").mkdir(exist_ok=True)
    onnx.save(onnx.load(written / "model.onnx"), folder / _FILE, save_as_external_data=False)


def _run_items(session: Any, items: list[dict[str, Any]], side: str | None, pad: int) -> list[list[float]]:
    """Gives the logits of items that are run together: for each a list, or a list for each of its tokens."""
    import numpy as np

    length = max(len(item["ids"]) for item in items)
    items = [{**item, "mask": [1] * len(item["ids"])} for item in items]

    def padded(name: str, filler: int) -> Any:
        rows = [item[name] or [0] * len(item["ids"]) for item in items]
        gaps = [[filler] * (length - len(row)) for row in rows]
        return np.array([[*gap, *row] if side == "left" else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)])

    given = {"input_ids": padded("ids", pad), "attention_mask": padded("mask", 0), "token_type_ids": padded("types", 0)}
    wanted = {item.name for item in session.get_inputs()}
    feed = {name: value.astype(np.int64) for name, value in given.items() if name in wanted}
    found = session.run(["logits"], feed)[0]
    kept = given["attention_mask"].astype(bool)
    return [(row[mask] if row.ndim > 1 else row).tolist() for row, mask in zip(found, kept, strict=True)]


def _batch_answer(session: Any, tokenizer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    for item in batch["items"]:
        if item["ids"] is None:
            encoded = tokenizer(item["text"], item["pair"], truncation=True)
            item["ids"], item["types"] = encoded["input_ids"], encoded.get("token_type_ids")
    parts = [batch["items"]] if batch["padding"] else [[item] for item in batch["items"]]
    pad = tokenizer.pad_token_id or 0
    try:
        scores = [row for part in parts for row in _run_items(session, part, batch["padding"], pad)]
    except Exception as error:  # whatever the engine raises: a text that is too long
        return {"scores": [], "raw": True, "error": f"{type(error).__name__}: {error}"}
    return {"scores": scores, "raw": True, "error": ""}


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Makes what ANSWER.json holds. All scores are logits: the file holds no function on them."""
    import onnxruntime
    import transformers

    folder = Path(request["folder"])
    answer = {"version": onnxruntime.__version__, "error": "", "batches": [], "notes": []}
    try:
        if not (folder / _FILE).is_file():
            _export_model(folder)
        session = onnxruntime.InferenceSession(str(folder / _FILE), providers=["CPUExecutionProvider"])
    except (ImportError, MemoryError):  # says nothing about the checkpoint
        raise
    except Exception as error:  # whatever the exporter or the engine raises
        return {**answer, "error": f"{type(error).__name__}: {error}"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return {**answer, "batches": [_batch_answer(session, tokenizer, batch) for batch in request["batches"]]}


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _export_model(Path(sys.argv[1]))
        sys.exit()
    request_file, answer_file = map(Path, sys.argv[1:])
    answer_file.write_text(json.dumps(_answer_request(json.loads(request_file.read_text("utf-8")))), "utf-8")
