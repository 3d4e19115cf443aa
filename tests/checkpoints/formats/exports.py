"""GGUF files of small classifiers, written as llama.cpp's converter writes them: with its names and its omissions."""

from pathlib import Path
from typing import Any

import gguf
from transformers import PreTrainedModel

ARCHITECTURES = {
    "bert": gguf.MODEL_ARCH.BERT,
    "distilbert": gguf.MODEL_ARCH.BERT,
    "roberta": gguf.MODEL_ARCH.BERT,
    "xlm-roberta": gguf.MODEL_ARCH.BERT,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "gpt2": gguf.MODEL_ARCH.GPT2,
}
_PREFIXES = ("bert.", "distilbert.", "roberta.", "model.", "transformer.")
_DROPPED = ("pooler.dense", "embeddings.position_ids")


def llama_labels(model: PreTrainedModel) -> list[str]:
    """The labels that the converter writes: none for two placeholders, else all in the order of their ids."""
    labels = [model.config.id2label[at] for at in sorted(model.config.id2label)]
    return [] if labels == ["LABEL_0", "LABEL_1"] else labels


def converted(model: PreTrainedModel) -> dict[str, Any]:
    """The tensors under the names of `gguf.get_tensor_name_map`, as the converter's `modify_tensors` asks for them."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[model.config.model_type], 4)
    found = {}
    for key, tensor in model.state_dict().items():
        name = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), key)
        if name.startswith(_DROPPED):
            continue
        if llama_labels(model) and name in {"classifier.weight", "classifier.bias"}:
            name = name.replace("classifier.", "classifier.out_proj.")
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            continue  # the converter stops at such a tensor; forks of it drop the tensor
        found[target] = tensor.float().numpy()
    return found


def write_gguf(
    model: PreTrainedModel, path: Path, *, pooling: Any = None, labels: list[str] | None = None, without: str = "-",
    quantized: str = "-",
) -> Path:  # fmt: skip
    """The model as a GGUF file; `labels` in place of the model's own, `without` tensors whose names begin so.

    Matrices whose names begin with `quantized` are in Q8_0.
    """
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[ARCHITECTURES[model.config.model_type]])
    writer.add_token_list(["[PAD]", "[CLS]", "word"])
    if pooling is not None:
        writer.add_pooling_type(pooling)
    texts = llama_labels(model) if labels is None else labels
    if texts:
        writer.add_classifier_output_labels(texts)
    for name, array in converted(model).items():
        kind = gguf.GGMLQuantizationType.Q8_0 if name.startswith(quantized) and array.ndim > 1 else None
        if not name.startswith(without):
            writer.add_tensor(name, gguf.quants.quantize(array, kind) if kind else array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
