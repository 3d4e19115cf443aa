"""Runs texts through llama.cpp: PYTHON llama_cpp.py REQUEST.json ANSWER.json.

PYTHON has llama-cpp-python, and torch and transformers for llama.cpp's converter. HEADSCOPE_LLAMA_CONVERTER is the path
of convert_hf_to_gguf.py in a copy of llama.cpp; the source distribution of llama-cpp-python has vendor/llama.cpp.
The file is in float32. If all tokens are given as IDs, it has no vocabulary, so that any tokenizer is accepted.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

if str(Path(__file__).resolve().parent) in sys.path:  # there, this file has the engine's name
    sys.path.remove(str(Path(__file__).resolve().parent))

import llama_cpp

_ERROR = 4
"""The level of errors in llama.cpp's log."""
_NO_VOCABULARY = "The converter was kept from writing a vocabulary, because all tokens are given as IDs."
_SEGMENT_IDS = "llama.cpp takes no segment IDs: those of pairs were left out."


def _import_converter() -> Any:
    """Imports the modules of llama.cpp's converter."""
    try:
        folder = Path(os.environ["HEADSCOPE_LLAMA_CONVERTER"]).parent
    except KeyError:
        sys.exit("Set HEADSCOPE_LLAMA_CONVERTER to the path of convert_hf_to_gguf.py in a copy of llama.cpp.")
    sys.path[:0] = [str(folder), str(folder / "gguf-py")]
    return importlib.import_module("conversion")


def _write_gguf(conversion: Any, folder: Path, file: Path, has_text: bool) -> None:
    """Converts the checkpoint in this process, as the converter's command line does with --outtype f32."""
    parameters = conversion.ModelBase.load_hparams(folder, False)
    name = conversion.get_model_architecture(parameters, conversion.ModelType.TEXT)
    model = conversion.get_model_class(name)(folder, conversion.base.gguf.LlamaFileType.ALL_F32, file)
    if not has_text:

        def set_no_vocabulary() -> None:
            model.gguf_writer.add_tokenizer_model("none")
            model.gguf_writer.add_vocab_size(parameters["vocab_size"])
            model.gguf_writer.add_token_type_count(parameters.get("type_vocab_size", 1))

        model.set_vocab = set_no_vocabulary
    with conversion.base.torch.inference_mode():
        model.write()


def _read_token_ids(vocab: Any, item: dict[str, Any]) -> list[int]:
    """Gives the token IDs that were given, or those that llama.cpp makes; a pair is joined as llama-server joins it."""
    if item["ids"] is not None:
        return list(item["ids"])

    def tokenize(text: str, add_special: bool) -> list[int]:
        data = text.encode()
        found = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), found, len(found), add_special, False)
        return list(found[:count])

    if item["pair"] is None:
        return tokenize(item["text"], True)
    eos, sep = llama_cpp.llama_vocab_eos(vocab), llama_cpp.llama_vocab_sep(vocab)
    end = [eos if eos >= 0 else sep] * llama_cpp.llama_vocab_get_add_eos(vocab)
    start = [llama_cpp.llama_vocab_bos(vocab)] * llama_cpp.llama_vocab_get_add_bos(vocab)
    between = end + [sep] * llama_cpp.llama_vocab_get_add_sep(vocab)
    return start + tokenize(item["text"], False) + between + tokenize(item["pair"], False) + end


def _decode_batch(model: Any, context: Any, sequences: list[list[int]]) -> list[list[float]]:
    """Computes the scores of the sequences in one batch."""
    batch = llama_cpp.llama_batch_init(sum(map(len, sequences)), 0, len(sequences))
    for number, sequence in enumerate(sequences):
        for position, token in enumerate(sequence):
            at = batch.n_tokens
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, True
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, number
            batch.n_tokens = at + 1
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    status = llama_cpp.llama_decode(context, batch)
    if status:
        raise RuntimeError(f"llama_decode returned {status}")
    labels = llama_cpp.llama_model_n_cls_out(model)
    return [llama_cpp.llama_get_embeddings_seq(context, number)[:labels] for number in range(len(sequences))]


def _load_model(file: str) -> Any:
    """Loads the model of a GGUF file; raises RuntimeError with what llama.cpp logged as errors."""
    errors: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def keep_error(level: int, text: bytes, _: Any) -> None:
        if level == _ERROR:
            errors.append(text.decode(errors="replace"))

    llama_cpp.llama_log_set(keep_error, None)
    model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(), None)
    if not model:
        raise RuntimeError(" ".join(errors))
    return model


def _score_batch(file: str, batch: dict[str, Any]) -> list[list[float]]:
    """Computes the scores of a batch, with the classifier switched on as by --pooling rank."""
    model = _load_model(file)
    sequences = [_read_token_ids(llama_cpp.llama_model_get_vocab(model), item) for item in batch["items"]]
    parts = [sequences] if batch["padding"] else [[sequence] for sequence in sequences]
    params = llama_cpp.llama_context_default_params()
    params.embeddings, params.pooling_type = True, llama_cpp.LLAMA_POOLING_TYPE_RANK
    params.n_seq_max = max(map(len, parts))
    # The whole batch is decoded at one time: texts that are read in both directions can't be split.
    params.n_ctx = params.n_batch = params.n_ubatch = params.n_seq_max * max(map(len, sequences))
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it computes with float16
    context = llama_cpp.llama_init_from_model(model, params)
    return [scores for part in parts for scores in _decode_batch(model, context, part)]


def _batch_answer(file: Path, batch: dict[str, Any]) -> dict[str, Any]:
    """Computes the scores of a batch in another process: llama.cpp ends the process on a text that it can't run."""
    command, data = [sys.executable, __file__, str(file)], json.dumps(batch)
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(command, input=data, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = re.sub(r"\S*/", "", done.stderr.strip().rpartition("\n")[2])  # without the folders of the build
        return {"scores": [], "raw": True, "error": f"exit code {done.returncode}: {last}"}
    return {"scores": json.loads(done.stdout), "raw": True, "error": ""}


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Makes what ANSWER.json holds. All scores are logits."""
    # Its GELU is a table in float16, whatever the file holds.
    answer = {"version": llama_cpp.__version__, "error": "", "batches": [], "notes": [], "dtype": "float16"}
    items = [item for batch in request["batches"] for item in batch["items"]]
    has_text = any(item["ids"] is None for item in items)
    file, conversion = Path(request["scratch"]) / "model.gguf", _import_converter()
    try:
        _write_gguf(conversion, Path(request["folder"]), file, has_text)
        _load_model(str(file))
    except (ImportError, MemoryError):  # says nothing about the checkpoint
        raise
    except Exception as error:  # whatever the converter raises on a checkpoint that it doesn't know
        return {**answer, "error": f"{type(error).__name__}: {error}"}
    has_types = any(item["types"] and any(item["types"]) for item in items)
    notes = [note for note, holds in ((_NO_VOCABULARY, not has_text), (_SEGMENT_IDS, has_types)) if holds]
    batches = [_batch_answer(file, batch) for batch in request["batches"]]
    return {**answer, "batches": batches, "notes": notes}


if __name__ == "__main__":
    if len(sys.argv) == 2:  # one batch, in a process of _batch_answer
        print(json.dumps(_score_batch(sys.argv[1], json.load(sys.stdin))))
        sys.exit()
    request_file, answer_file = map(Path, sys.argv[1:])
    answer_file.write_text(json.dumps(_answer_request(json.loads(request_file.read_text("utf-8")))), "utf-8")
