"""Small classifiers with random weights, texts for them, and what engines compute instead of the classifier's head."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from scorers import WORDS, save_tokenizer
from serving.servers import Protocol, Scores, serve
from tokenizers import processors
from transformers import AutoTokenizer

import headscope

LABELS = ("bad", "fair", "good")
_SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0, "n_embd": 32, "n_layer": 2, "n_head": 2,
    "n_positions": 64, "eos_token_id": 3, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 3, "head_dim": 16,
    "num_key_value_heads": 2,
}  # fmt: skip
TEXTS = [" ".join(f"w{(7 * at + 3 * word) % 94}" for word in range(3 + at % 9)) for at in range(30)]
REVERSED = TEXTS[::-1]
"""The second texts of pairs."""
Forward = Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]
SEGMENTS = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)


def save_model(family: str, folder: Path, kind: str = "SequenceClassification", **settings: Any) -> None:
    """A classifier with random weights, also of biases, without a tokenizer."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**_SIZES, "id2label": dict(enumerate(LABELS)), **settings})
    model = getattr(transformers, f"{family}For{kind}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15 if parameter.shape[0] == config.num_labels else 0.5)
    model.save_pretrained(folder)


def saved(family: str, folder: Path, **settings: Any) -> str:
    """A classifier and its tokenizer of words; pairs of BERT have segment IDs."""
    save_model(family, folder, **settings)
    tokenizer = save_tokenizer(folder)
    tokenizer.backend_tokenizer.post_processor = SEGMENTS
    tokenizer.model_max_length = settings.get("max_position_embeddings", 64)
    tokenizer.model_input_names = ["input_ids", "attention_mask", *(["token_type_ids"] * (family == "Bert"))]
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    tokenizer.save_pretrained(folder)
    return str(folder)


def load_model(folder: str, **settings: Any) -> Any:
    """The saved model, with other settings in its configuration."""
    name = json.loads(Path(folder, "config.json").read_text())["architectures"][0]
    return getattr(transformers, name).from_pretrained(folder, **settings).eval()


def scorer(folder: str, forward: Forward) -> Scores:
    """Logits of a text or a pair, alone, as an engine computes them."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load_model(folder)

    def scores(text: tuple[str, ...]) -> Sequence[float]:
        with torch.no_grad():
            found: list[float] = forward(model, dict(tokenizer(*text, return_tensors="pt")))[0].float().tolist()
        return found

    return scores


def verified(
    folder: str, scores: Scores, protocol: str | Protocol = "vllm", labels: Sequence[str] = LABELS, **options: Any
) -> headscope.VerifiedServer:
    """The result on a checkpoint and a server with these scores; for TEXTS, unless other ones are given."""
    with serve(protocol, scores, labels) as url:
        return headscope.verify_served(folder, url, **{"text": TEXTS, **options})


def hidden_states(model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.as_tensor(model.base_model(**given).last_hidden_state)


def as_it_is(model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.as_tensor(model(**given).logits)


def without_pooler(model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.as_tensor(model.classifier(hidden_states(model, given)[:, 0]))


def without_segments(model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return as_it_is(model, {**given, "token_type_ids": given["token_type_ids"] * 0})


def softsign_pooler(model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    pooled = model.base_model.pooler.dense(hidden_states(model, given)[:, 0])
    return torch.as_tensor(model.classifier(torch.nn.functional.softsign(pooled)))


def with_other_weights(model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    shift = torch.linspace(-1, 1, model.classifier.weight.numel()).view_as(model.classifier.weight) * 1e-3
    pooled = model.base_model(**given).pooler_output
    return torch.nn.functional.linear(pooled, model.classifier.weight + shift, model.classifier.bias)


def cut_to(limit: int, forward: Forward = as_it_is) -> Forward:
    """An engine that truncates as the tokenizer does: the last token stays."""

    def cut(model: Any, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        size = given["input_ids"].shape[1]
        kept = [*range(min(size, limit) - 1), size - 1]
        return forward(model, {name: value[:, kept] for name, value in given.items()})

    return cut
