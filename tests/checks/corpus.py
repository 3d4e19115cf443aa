"""Seeded faults and healthy checkpoints for the rules of `check`."""

from collections.abc import Iterator

from tests.checks.broken import (
    BYTES,
    ENDS,
    LABELS,
    NO_ENDS,
    PLAIN,
    RIGHT,
    Case,
    adapter,
    added,
    changed,
    contradicted,
    dropped,
    emptied,
    fault,
    filled,
    fresh,
    heard,
    named,
    padded_otherwise,
    prefixed,
    put,
    quantized,
    renamed,
    resized,
    saved,
    served,
    trained,
    with_decision_head,
    with_dense,
    with_score_head,
    words,
)
from tests.checks.ended import ended
from tests.families import FAMILIES
from tests.saving import save_sharded_safetensors, save_torch_zip

_ENDED = "tests.checks.ended"
_SEVERAL = "multi_label_classification"
_WIDE = {"hidden_size": 256, "num_attention_heads": 4}
_WHOLE = ["classifier", "pooler"]
_TWO = named({"0": "no", "1": "yes"})
_FORGOTTEN = quantized("bnb4", of="language_model", llm_int8_skip_modules=["lm_head"])
_TAGS = {"task": "token-classification"}
_NO_MASK = saved("xlnet", edit=dropped("transformer.mask_emb"))
NAMED = {"labels": tuple(LABELS.values())}

FAULTS: tuple[Case, ...] = (
    fault("HS802", "prefix", saved("bert", edit=prefixed("wrapped.")), "inference", "HS101", "HS102"),
    fault("HS802", "module", saved("bert", edit=prefixed("module.")), "inference", "HS101", "HS102"),
    fault("HS802", "compiled", saved("distilbert", edit=prefixed("_orig_mod.")), "inference", "HS101", "HS102"),
    fault("HS802", "two-classes", saved("bert", edit=prefixed("module."), **_TWO), "inference", "HS101", "HS102"),
    fault("HS101", "embeddings", saved("roberta", edit=dropped("roberta.embeddings.word"))),
    fault("HS101", "layer", saved("llama", edit=dropped("model.layers.1."))),
    fault("HS101", "layer-norm", saved("distilbert", edit=dropped("distilbert.transformer.layer.0.output_layer_norm"))),
    fault("HS101", "training", saved("electra", of="base", edit=dropped("encoder.layer.0.attention")), "training"),
    fault("HS102", "language-model", saved("roberta", of="language_model"), "inference", "HS202", "HS401"),
    fault("HS102", "base", saved("distilbert", of="base"), "inference", "HS202", "HS401"),
    fault("HS102", "dropped", saved("gpt2", edit=dropped("score"))),
    fault("HS102", "image", saved("vit", edit=dropped("classifier"))),
    fault("HS103", "pooler", saved("bert", edit=dropped("bert.pooler"))),
    fault("HS103", "pre-classifier", saved("distilbert", edit=dropped("pre_classifier")), "training"),
    fault("HS103", "dense", saved("roberta", edit=dropped("classifier.dense"))),
    fault("HS103", "classifier-only", saved("bert", edit=dropped("classifier"))),
    fault("HS104", "dense", saved("roberta", edit=resized("classifier.dense.weight", 48, 32))),
    fault("HS104", "pre-classifier", saved("distilbert", edit=resized("pre_classifier.weight", 32, 9))),
    fault("HS104", "pooler", saved("bert", edit=resized("bert.pooler.dense.bias", 31)), "training"),
    fault("HS105", "xlnet", _NO_MASK),
    fault("HS105", "xlnet-training", _NO_MASK, "training"),
    fault("HS105", "xlnet-labels", _NO_MASK, "training", **NAMED),
    fault("HS106", "renamed", saved("bert", edit=renamed("classifier.", "head.")), "inference", "HS103"),
    fault("HS106", "renamed-score", saved("llama", edit=renamed("score.", "classifier.")), "inference", "HS102"),
    fault("HS106", "renamed-out", saved("roberta", edit=renamed("out_proj", "final")), "inference", "HS103"),
    fault("HS107", "bart", adapter("bart", target_modules=["q_proj"]), "inference", "HS202"),
    fault("HS107", "deberta", adapter("deberta-v2", target_modules=["query_proj"]), "inference", "HS109", "HS202"),
    fault("HS107", "xlnet", adapter("xlnet", target_modules=["layer_1"]), "training"),
    fault("HS107", "t5", adapter("t5", target_modules=["q"]), "inference", "HS202"),
    fault("HS108", "bert", saved("bert", save=save_torch_zip)),
    fault("HS108", "llama", saved("llama", save=save_torch_zip), "training"),
    fault("HS108", "vit", saved("vit", save=save_torch_zip)),
    fault("HS109", "rank", adapter("bert", {"r": -1}, modules_to_save=_WHOLE), "inference", "HS202"),
    fault("HS109", "shapes", adapter("bert", {"r": 4}, modules_to_save=_WHOLE), "training"),
    fault("HS109", "missing", adapter("bert", {"use_dora": True}, modules_to_save=_WHOLE), "inference", "HS202"),
    fault("HS109", "ignored", adapter("bert", {"target_modules": ["query"]}, modules_to_save=_WHOLE), "training"),
    fault("HS111", "one", saved("bert", config={"num_hidden_layers": 1}), "inference"),
    fault("HS111", "vision", saved("vit", config={"num_hidden_layers": 1}), "training"),
    fault("HS111", "other name", saved("distilbert", config={"n_layers": 1}), "inference"),
    fault("HS113", "lstm", saved("bert", config={"architectures": ["BertLSTMForSequenceClassification"]}), "training"),
    fault("HS113", "mean", saved("roberta", config={"architectures": ["MeanPooledClassifier"]}), "training"),
    fault("HS113", "vision", saved("vit", config={"architectures": ["MyViTForImageClassification"]}), "training"),
    fault("HS112", "lstm", saved("bert", edit=added("lstm.weight_ih_l0", "lstm.weight_hh_l0")), "inference"),
    fault("HS112", "inside", saved("roberta", edit=added("roberta.second.weight")), "training"),
    fault("HS112", "statistics", saved("llama", edit=added("mean", "std")), "inference"),
    fault("HS801", "everything", saved("bert", edit=emptied("")), "inference"),
    fault("HS801", "head", saved("roberta", edit=emptied("classifier")), "training"),
    fault("HS801", "bias", saved("distilbert", edit=emptied("classifier.bias")), "inference"),
    fault("HS201", "asked-for-more", saved("bert"), "inference", "HS202", num_labels=5),
    fault("HS201", "asked-in-training", saved("gpt2"), "training", num_labels=2),
    fault("HS201", "id2label-shorter", saved("roberta", config=_TWO)),
    fault("HS201", "image", saved("vit"), "inference", "HS202", num_labels=10),
    fault("HS201", "contradicts-itself", saved("distilbert", config={"num_labels": 7}), "inference", "HS202"),
    fault("HS202", "bert", saved("bert", num_labels=3)),
    fault("HS202", "vit", saved("vit", num_labels=3)),
    fault("HS202", "llama", saved("llama", num_labels=4)),
    fault("HS203", "not-inverse", saved("bert", config={"label2id": {"no": 0, "maybe": 2, "yes": 1}})),
    fault("HS203", "gap", saved("roberta", config={"id2label": {"0": "no", "1": "maybe", "3": "yes"}})),
    fault("HS203", "twice", saved("llama", config={"id2label": {"0": "no", "1": "no", "2": "yes"}}), "training"),
    fault("HS203", "spare", saved("vit", config={"label2id": {"no": 0, "maybe": 1, "yes": 2, "never": 3}})),
    fault("HS204", "unknown-training", saved("llama", config={"problem_type": "ranking"}), "training"),
    fault("HS204", "regression-of-images", saved("vit", config={"problem_type": "regression"}), "training"),
    fault("HS204", "unknown", saved("distilbert", config={"problem_type": "ordinal"})),
    fault("HS204", "regression-of-names", saved("roberta", config={"problem_type": "regression"})),
    fault("HS205", "bert", saved("bert", num_labels=1), "training"),
    fault("HS205", "llama", saved("llama", num_labels=1), "training"),
    fault("HS205", "vit", saved("vit", num_labels=1), "training"),
    fault("HS204", "softmax-over-one", heard("Wav2Vec2", num_labels=1), "training"),
    fault("HS206", "several-labels", heard("Wav2Vec2", problem_type=_SEVERAL, **named(LABELS)), "training"),
    fault("HS206", "numbers", heard("Hubert", problem_type="regression", **named(LABELS)), "training"),
    fault("HS206", "wavlm", heard("WavLM", problem_type=_SEVERAL, **named(LABELS)), "training"),
    fault("HS207", "softmax", ended("SoftmaxedBert"), "training", model_class=f"{_ENDED}:SoftmaxedBert"),
    fault("HS207", "image", ended("SoftmaxedViT"), "inference", model_class=f"{_ENDED}:SoftmaxedViT"),
    fault("HS207", "sigmoid", ended("SigmoidBert"), "training", model_class=f"{_ENDED}:SigmoidBert"),
    fault("HS207", "tokens", ended("SoftmaxedTagger"), "inference", model_class=f"{_ENDED}:SoftmaxedTagger"),
    fault("HS301", "gpt2", saved("gpt2", config={"pad_token_id": None})),
    fault("HS301", "llama", saved("llama", config={"pad_token_id": None}), "training"),
    fault("HS301", "mistral", saved("mistral", config={"pad_token_id": None})),
    fault("HS302", "gpt2", saved("gpt2", config={"pad_token_id": 99})),
    fault("HS302", "xlnet", saved("xlnet", config={"pad_token_id": 500})),
    fault("HS302", "negative", saved("gpt2", config={"pad_token_id": -1}), "training"),
    fault("HS303", "bert-left", saved("bert", tokenizer={"padding_side": "left"}), "inference", "HS305"),
    fault("HS303", "roberta-left", saved("roberta", tokenizer={"padding_side": "left"}), "training", "HS305"),
    fault("HS303", "xlnet-right", saved("xlnet", tokenizer={"padding_side": "right"}), "inference", "HS305"),
    fault("HS304", "bart", saved("bart", tokenizer={"pad_token": "</s>", "eos_token": {"content": "</s>"}})),
    fault("HS304", "bart-training", saved("bart", tokenizer={"pad_token": "</s>", "eos_token": "</s>"}), "training"),
    fault("HS304", "llama", saved("llama", config={"pad_token_id": 2})),
    fault("HS304", "gpt2", saved("gpt2", tokenizer=RIGHT | {"pad_token": "</s>"}), "training"),
    fault("HS305", "electra-left", saved("electra", tokenizer={"padding_side": "left"}), "inference", "HS303"),
    fault("HS305", "albert-left", saved("albert", tokenizer={"padding_side": "left"}), "inference", "HS303"),
    fault("HS306", "gpt2", padded_otherwise("gpt2", 5, 6)),
    fault("HS306", "llama", padded_otherwise("llama", 0, 6), "training"),
    fault("HS306", "bart", saved("bart", tokenizer=PLAIN | RIGHT, vocabulary=words(60, NO_ENDS | {"</s>": 7}, **ENDS))),
    fault("HS306", "bert-inert", padded_otherwise("bert", 0, 6)),
    fault("HS307", "bert-words", saved("bert", tokenizer=PLAIN, vocabulary=words(120, {}))),
    fault("HS307", "gpt2-pad", saved("gpt2", tokenizer=PLAIN | RIGHT, vocabulary=words(99, {})), "training"),
    fault("HS307", "roberta-image", saved("roberta", tokenizer=PLAIN, vocabulary=words(99, {"<image>": 101}))),
    fault("HS308", "bert", saved("bert", tokenizer={"model_max_length": 128})),
    fault("HS308", "roberta", saved("roberta", tokenizer={"model_max_length": 64})),
    fault("HS308", "gpt2", saved("gpt2", tokenizer={"model_max_length": 65}), "training"),
    fault("HS309", "side", contradicted(padding={"direction": "Left", "pad_token": "<pad>"})),
    fault("HS309", "pad", contradicted(padding={"direction": "Right", "pad_token": "</s>"})),
    fault("HS309", "cut", contradicted(truncation={"direction": "Left"})),
    fault("HS310", "bart", saved("bart", tokenizer=PLAIN | RIGHT, vocabulary=words(60, NO_ENDS))),
    fault("HS310", "bart-bytes", saved("bart", tokenizer=RIGHT, vocabulary=words(60, NO_ENDS, **BYTES)), "training"),
    fault("HS310", "t5", saved("t5", tokenizer=PLAIN | RIGHT, vocabulary=words(60, {"<pad>": 0, "</s>": 1}))),
    fault("HS401", "bert", saved("bert", of="language_model"), "inference", "HS103", "HS202"),
    fault("HS401", "llama", saved("llama", of="language_model"), "inference", "HS102", "HS202"),
    fault("HS401", "vit", saved("vit", of="base"), "inference", "HS102", "HS202"),
    fault("HS401", "another-task", saved("bert"), "inference", **_TAGS),
    fault("HS401", "no-head", saved("roberta", edit=dropped("classifier")), "inference", "HS102", **_TAGS),
    fault("HS402", "bert", saved("bert", config={"dtype": "float16"}), "training"),
    fault("HS402", "llama", saved("llama", config={"dtype": "float16"}), "training"),
    fault("HS402", "vit", saved("vit", config={"dtype": "float16"}), "training"),
    fault("HS403", "bert", saved("bert", config={"auto_map": {"AutoModel": "modeling_x.X"}})),
    fault("HS403", "llama", saved("llama", config={"auto_map": {"AutoConfig": "x.X"}}), "training"),
    fault("HS403", "vit", saved("vit", config={"auto_map": {"AutoModel": "x.X"}})),
    fault("HS405", "no-file", with_dense("bert", {"in_features": 32, "out_features": 8})),
    fault("HS405", "shape", with_dense("roberta", {"in_features": 32, "out_features": 8}, (8, 31))),
    fault("HS405", "settings", with_dense("distilbert", {"in_features": "32", "out_features": 8}, (8, 32)), "training"),
    fault("HS406", "value-head", with_score_head("llama", "v_head"), "inference", "HS102", "HS202"),
    fault("HS406", "reward-head", with_score_head("qwen2", "reward_head"), "inference", "HS102", "HS202"),
    fault("HS406", "training", with_score_head("mistral", "value_head"), "training", "HS102"),
    fault("HS407", "type-without-temperature", with_decision_head(noul=1.2, score=1.0)),
    fault("HS407", "unknown-type", with_decision_head(noul=1.2, score=1.0, choice=0.9, rank=1.0)),
    fault("HS407", "temperature-of-zero", with_decision_head(noul=0.0, score=1.0, choice=1.0), "training"),
    fault("HS404", "eight-bits", quantized("bnb8", head=True)),
    fault("HS404", "four-bits", quantized("bnb4", head=True), "training"),
    fault("HS404", "fp8", quantized("fp8", head=True)),
    fault("HS404", "forgotten", _FORGOTTEN, "training", "HS102", task="sequence-classification", num_labels=3),
    served("HS901", "bert", "llama-cpp@0.3.36", "HS902", "HS905"),
    served("HS901", "distilbert", "llama-cpp@0.3.36", "HS902", "HS905"),
    served("HS901", "qwen2", "sglang@0.5.23", "HS905", "HS904"),
    served("HS902", "roberta", "onnx-runtime@1.32.0"),
    served("HS902", "gpt2", "onnx-runtime@1.32.0"),
    served("HS902", "electra", "sentence-transformers@6.2.0"),
    served("HS903", "bert", "ctranslate2@4.8.5"),
    served("HS903", "distilbert", "vllm@0.33.0"),
    served("HS903", "albert", "vllm@0.33.0"),
    served("HS904", "gpt2", "vllm@0.33.0", "HS905"),
    served("HS904", "llama", "vllm@0.33.0", "HS905"),
    served("HS904", "llama", "sglang@0.5.23", "HS905"),
    served("HS905", "roberta", "vllm@0.33.0"),
    fault("HS504", "nan", saved("bert", edit=filled("bert.encoder.layer.0.output.dense.weight", value=float("nan")))),
    fault("HS504", "infinite", saved("gpt2", edit=filled("transformer.h.0.mlp.c_fc.bias", value=float("inf")))),
    fault("HS504", "embeddings", saved("llama", edit=filled("model.embed_tokens.weight", value=-float("inf")))),
    fault("HS501", "nan", saved("bert", edit=filled("classifier.weight", value=float("nan")))),
    fault("HS501", "inf-bias", saved("roberta", edit=filled("classifier.out_proj.bias", value=float("inf")))),
    fault("HS501", "zeros", saved("llama", edit=filled("score.weight", value=0.0))),
    fault("HS501", "one-row", saved("vit", edit=changed("classifier.weight", put(0, 0.0)))),
    fault("HS501", "training", saved("gpt2", edit=filled("score.weight", value=float("nan"))), "training"),
    fault("HS502", "bert", saved("bert", edit=fresh, **_WIDE)),
    fault("HS502", "llama", saved("llama", edit=fresh, hidden_size=256, head_dim=64)),
    fault("HS502", "vit", saved("vit", edit=fresh, **_WIDE)),
)


def _healthy() -> Iterator[Case]:
    for name in FAMILIES:
        side = {"padding_side": "left" if name == "xlnet" else "right", "pad_token": "<pad>", "eos_token": "</s>"}
        yield Case(f"{name}-served", saved(name, edit=trained, tokenizer=side), "inference")
        yield Case(f"{name}-before-training", saved(name, of="base", tokenizer=side), "training")
        if FAMILIES[name].language_model and name != "vit":
            yield Case(
                f"{name}-pretrained", saved(name, of="language_model"), "training", options={"labels": ["a", "b"]}
            )
    yield Case("sharded", saved("bert", save=save_sharded_safetensors), "inference")
    yield Case("regression", saved("bert", num_labels=1, problem_type="regression", edit=trained), "training")
    yield Case("reward", saved("llama", num_labels=1, edit=trained), "inference")
    yield Case("multi-label", saved("roberta", problem_type="multi_label_classification", edit=trained), "inference")
    yield Case("bfloat16", saved("llama", config={"dtype": "bfloat16"}, edit=trained), "training")
    yield Case("same-labels", saved("bert", edit=trained), "inference", options=NAMED)
    for packing in ("bnb4", "bnb8", "gptq", "awq", "fp8", "compressed-tensors", "torchao"):
        yield Case(f"quantized-{packing}", quantized(packing), "inference")
    yield Case("lora", adapter("bert", target_modules=["query"]), "inference", options=NAMED)
    yield Case("lora-roberta", adapter("roberta", target_modules=["query"]), "inference", options=NAMED)
    yield Case("lora-llama", adapter("llama", target_modules=["q_proj"]), "inference", options=NAMED)
    bart = adapter("bart", target_modules=["q_proj"], modules_to_save=["classification_head"])
    yield Case("lora-bart", bart, "inference", options=NAMED)


HEALTHY: tuple[Case, ...] = tuple(_healthy())
