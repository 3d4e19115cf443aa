"""Checkpoints with their own tokenizers and processors, broken where files show nothing, and their truth: a run.

`python -m tests.verdicts.runs` writes each, loads and calls it without headscope, and prints where `check` disagrees.
"""

import argparse
import json
import math
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import headscope
from headscope.checks import trial_process
from headscope.checks.trial_process import TrialProcess
from headscope.errors import HeadscopeError
from tests.verdicts.cases import NamedCase, sampled

WORDS = {
    "english": [*(f"w{at}" for at in range(80)), "the", "film", "was", "good", "and", "i", "would", "see", "it", "no"],
    "protein": list("ACDEFGHIKLMNPQRSTVWY"),
    "thai": [chr(0x0E01 + at) for at in range(46)],
    "cyrillic": [f"{chr(0x430 + at)}{chr(0x430 + other)}" for at in range(10) for other in range(8)],
    "events": [f"page:{at}" for at in range(60)],
}
SEPARATORS = {"events": ","}
"""What stands between the words of a text; a space elsewhere."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SIZES = {
    "vocab_size": 112, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 96, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2,
    "sep_token_id": 3, "num_key_value_heads": 2, "embedding_size": 32, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 96, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "d_model": 32, "d_ff": 40, "d_kv": 8,
    "num_layers": 2, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "ffn_dim": 40,
    "word_embed_proj_dim": 32, "decoder_start_token_id": 3, "attn_implementation": "eager", "head_dim": 8,
}  # fmt: skip
_IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
          "image_size": 32, "patch_size": 8, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2,
          "hidden_sizes": [16, 32], "num_stages": 2, "embedding_size": 16, "hidden_dropout_prob": 0.0}  # fmt: skip
_SOUND = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
          "conv_dim": (16, 16), "conv_stride": (10, 8), "conv_kernel": (10, 8), "num_feat_extract_layers": 2,
          "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16,
          "tdnn_dim": (16, 16), "tdnn_kernel": (3, 1), "tdnn_dilation": (1, 1)}  # fmt: skip
_ENCODERS = ("Bert", "Roberta", "Electra", "Albert", "DebertaV2", "MPNet", "ModernBert", "DistilBert", "XLMRoberta")
_DECODERS = ("GPT2", "Llama", "Qwen2", "Mistral", "OPT", "Gemma")
_IMAGES, _SOUNDS = ("ViT", "Dinov2", "Swin", "ConvNext", "ResNet"), ("Wav2Vec2", "Hubert")
Change = Callable[["RunCase", Path], None]


@dataclass(frozen=True)
class RunCase:
    """A checkpoint to write: a class, its words, and what is changed before or after it is saved."""

    name: str
    family: str
    task: str = "SequenceClassification"
    words: str = "english"
    classes: int = 3
    dtype: str = "float32"
    weights: Callable[[Any], None] | None = None
    files: Change | None = None
    config: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def kind(self) -> str:
        return "image" if self.family in _IMAGES else "sound" if self.family in _SOUNDS else "text"

    def write(self, folder: Path) -> Path:
        """Writes the checkpoint with what belongs to it."""
        torch.manual_seed(zlib.crc32(self.name.encode()) + self.seed)
        cls = getattr(transformers, f"{self.family}For{self.task}")
        model = small_model(cls, self.kind, num_labels=self.classes)
        if self.weights is not None:
            with torch.no_grad():
                self.weights(model)
        model.to(getattr(torch, self.dtype)).save_pretrained(folder)
        self._write_tool(folder)
        if self.config:
            edit_json(folder / "config.json", **self.config)
        if self.files is not None:
            self.files(self, folder)
        return folder

    def _write_tool(self, folder: Path) -> None:
        if self.kind == "image":
            transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
        elif self.kind == "sound":
            transformers.Wav2Vec2FeatureExtractor(sampling_rate=16000).save_pretrained(folder)
        else:
            make_tokenizer(self.words, self.family, **self.tokenizer).save_pretrained(folder)


def small_model(cls: Any, kind: str, **settings: Any) -> Any:
    """A model of a class for texts, images or sounds, with random values that tell inputs apart."""
    known = cls.config_class().to_dict()
    sizes = {"image": _IMAGE, "sound": _SOUND, "text": _SIZES}[kind]
    taken = {name: value for name, value in sizes.items() if name in known or name == "attn_implementation"}
    model = cls(cls.config_class(**taken, **settings))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1 and "norm" not in name.lower():
                value.normal_(0, 0.15)
    return model


def make_tokenizer(words: str, family: str, **changes: Any) -> Any:
    """A tokenizer over some words, with the special tokens that the family expects."""
    vocabulary = {word: at for at, word in enumerate((*SPECIAL, *WORDS[words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    by_letter = words in ("protein", "thai")
    if words in SEPARATORS:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(SEPARATORS[words], "removed")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated") if by_letter else pre_tokenizers.Whitespace()
    if family in _DECODERS:
        template = "$A"
    elif family in ("Bart", "MBart", "T5"):
        template = "$A [SEP]"
    else:
        template = "[CLS] $A [SEP]"
    single = changes.pop("template", template)
    ids = changes.pop("ids", {"[CLS]": 2, "[SEP]": 3})
    pair = f"{single} $B:1 [SEP]:1" if family in ("Bert", "Electra", "Albert") else f"{single} $B"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=changes.pop("pair", pair), special_tokens=list(ids.items())
    )
    inputs = ["input_ids", "attention_mask"]
    inputs += ["token_type_ids"] if family in ("Bert", "Electra", "Albert") else []
    options: dict[str, Any] = {
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
        "bos_token": "[CLS]", "eos_token": "[SEP]", "model_max_length": 90, "model_input_names": inputs,
    }  # fmt: skip
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options | changes)


def edit_json(file: Path, **fields: Any) -> None:
    """Sets fields of a JSON file; None takes one out."""
    body = json.loads(file.read_text(encoding="utf-8"))
    body |= fields
    file.write_text(json.dumps({name: value for name, value in body.items() if value is not None}), encoding="utf-8")


def _scaled(*parts: str, by: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, value in model.named_parameters():  # a family without such parts stays healthy, as its truth says
            if any(part in name for part in parts):
                value.mul_(by)

    return change


def _mark(name: str) -> Change:
    def change(case: RunCase, folder: Path) -> None:
        path = folder / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    return change


def _without_tokenizer(case: RunCase, folder: Path) -> None:
    for path in folder.glob("*token*.json"):
        path.unlink()


def _edited(file: str, **fields: Any) -> Change:
    return lambda case, folder: edit_json(folder / file, **fields)


def _processor(**fields: Any) -> Change:
    return _edited("preprocessor_config.json", **fields)


_OUTPUTS = ("attention.output.dense", "attention.out_proj", "attn.c_proj", "o_proj", "self_attn.out_proj", "out_lin",
            "attn.o.", "attn.Wo", "attention.dense", "SelfAttention.o")  # fmt: skip
_INNER = ("intermediate.dense", "c_fc", "up_proj", "fc1", "lin1", "mlp.Wi", "ffn.weight", "fc2")
_WORDS = ("word_embeddings", "wte", "embed_tokens", "tok_embeddings", "shared")
_NORMS = ("LayerNorm.weight", "norm.weight", "ln_f.weight", "layer_norm.weight", "layernorm.weight", "norm_f.weight",
          "sa_layer_norm", "full_layer_layer_norm")  # fmt: skip
_WAYS = {
    "words zero": _scaled(*_WORDS, by=0.0), "norms 1e-30": _scaled(*_NORMS, by=1e-30),
    "attention zero": _scaled(*_OUTPUTS, by=0.0), "inner 1e25": _scaled(*_INNER, by=1e25),
    "inner 1e38": _scaled(*_INNER, by=1e38),
}  # fmt: skip
_ONE_WORD = {"type": "Replace", "pattern": {"Regex": r"\w+"}, "content": "film"}
_IDS_BEYOND = {"[CLS]": 999, "[SEP]": 998}


def broken() -> Iterator[RunCase]:
    """Checkpoints that load and answer nothing; the truth decides which ways hit a family."""
    texts = (*_ENCODERS, *_DECODERS, "Bart", "T5")
    for family in texts:
        for way, weights in _WAYS.items():
            yield RunCase(f"{way} {family}", family, weights=weights)
        yield RunCase(f"overflow float16 {family}", family, weights=_scaled(*_INNER, by=3e3), dtype="float16")
        for file in ("config.json", "tokenizer_config.json", "tokenizer.json"):
            yield RunCase(f"byte order mark in {file} {family}", family, files=_mark(file))
        yield RunCase(f"no tokenizer {family}", family, files=_without_tokenizer)
        beyond = {"ids": _IDS_BEYOND, "template": "[CLS] $A [SEP]"}
        yield RunCase(f"special ids beyond {family}", family, tokenizer=beyond)
        yield RunCase(f"return_dict false {family}", family, config={"return_dict": False})
        yield RunCase(f"length beyond {family}", family, files=_edited("tokenizer_config.json", model_max_length=400))
    for family in _ENCODERS:
        for value in (-10.0, 1e6, math.nan):
            names = ("layer_norm_eps", "norm_eps")
            yield RunCase(f"epsilon {value} {family}", family, config=dict.fromkeys(names, value))
    for family in ("Bert", "Roberta", "Electra", "XLMRoberta"):
        yield RunCase(f"is_decoder {family}", family, config={"is_decoder": True})
        yield RunCase(f"type ids beyond {family}", family, tokenizer={
            "template": "[CLS]:7 $A:7 [SEP]:7",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]})  # fmt: skip
    yield RunCase("no end token Bart", "Bart", tokenizer={"template": "$A"})
    yield RunCase("another end token Bart", "Bart", config={"eos_token_id": 40})
    yield from _deaf()
    for family in _IMAGES:
        std_zero, other_size = _processor(image_std=[0.0, 0.0, 0.0]), _processor(size={"height": 48, "width": 40})
        any_shape = _processor(size={"shortest_edge": 32})  # convolutions take it, fixed positions raise an error
        yield RunCase(f"norm statistics zero {family}", family, "ImageClassification", files=std_zero)
        yield RunCase(f"patches nan {family}", family, "ImageClassification", weights=_nan_in_first_matrix)
        yield RunCase(f"first matrix 1e38 {family}", family, "ImageClassification", weights=_first_matrix(1e38))
        yield RunCase(f"first matrix zero {family}", family, "ImageClassification", weights=_first_matrix(0.0))
        yield RunCase(f"other size {family}", family, "ImageClassification", files=other_size)
        yield RunCase(f"no crop {family}", family, "ImageClassification", files=any_shape)
    for family in _SOUNDS:
        yield RunCase(f"first matrix nan {family}", family, weights=_nan_in_first_matrix)
        yield RunCase(f"first matrix zero {family}", family, weights=_first_matrix(0.0))
    for family in ("Bert", "Roberta", "DistilBert", "Electra"):
        for way in ("words zero", "norms 1e-30", "inner 1e38"):
            yield RunCase(f"tokens {way} {family}", family, "TokenClassification", weights=_WAYS[way])
        beyond = {"ids": _IDS_BEYOND}
        yield RunCase(f"tokens special ids beyond {family}", family, "TokenClassification", tokenizer=beyond)
        yield RunCase(f"answers special ids beyond {family}", family, "QuestionAnswering", classes=2, tokenizer=beyond)


def _deaf() -> Iterator[RunCase]:
    """Texts reach the model, and their words don't."""
    for family in ("Bert", "Roberta", "DistilBert", "Electra"):
        for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering"):
            classes = 2 if task.startswith("Q") else 3
            yield RunCase(f"words equal {task} {family}", family, task, classes=classes, weights=_equal_words)
            yield RunCase(f"words made one {task} {family}", family, task, classes=classes,
                          files=_edited("tokenizer.json", normalizer=_ONE_WORD))  # fmt: skip
    for family in ("Bert", "Roberta", "Electra"):
        yield RunCase(f"choices without words {family}", family, "MultipleChoice", weights=_equal_words,
                      files=_choices_of_unequal_length)  # fmt: skip
        yield RunCase(f"choices without attention {family}", family, "MultipleChoice",
                      weights=_WAYS["attention zero"], files=_choices_of_unequal_length)  # fmt: skip


def _choices_of_unequal_length(case: RunCase, folder: Path) -> None:
    """A tokenizer of letters, with which a text and the same text backwards have other numbers of tokens."""
    make_tokenizer("english", case.family).save_pretrained(folder)
    body = json.loads((folder / "tokenizer.json").read_text())
    letters = {token: at for at, token in enumerate((*SPECIAL, *"abcdefghijklmnopqrstuvwxyz", "th", "wa", "oo"))}
    merges = [["t", "h"], ["w", "a"], ["o", "o"]]
    body["model"] = {"type": "BPE", "unk_token": "[UNK]", "vocab": letters, "merges": merges}
    (folder / "tokenizer.json").write_text(json.dumps(body))


def _equal_words(model: Any) -> None:
    table = model.get_input_embeddings().weight
    table.copy_(table[6].expand_as(table))


def _nan_in_first_matrix(model: Any) -> None:
    next(value for value in model.parameters() if value.dim() > 1).fill_(math.nan)


def _first_matrix(by: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        found = [value for value in model.parameters() if value.dim() > 2]
        next((value for value in found if value.dim() > 3), found[0]).mul_(by)

    return change


def healthy() -> Iterator[RunCase]:
    """Checkpoints that answer: families, tasks, scripts, class counts and number formats."""
    texts = (*_ENCODERS, *_DECODERS, "Bart", "T5")
    for family in texts:
        for words in WORDS:
            for dtype in ("float32", "bfloat16", "float16"):
                yield RunCase(f"{family} {words} {dtype}", family, words=words, dtype=dtype)
        for classes in (1, 2, 5, 40):
            yield RunCase(f"{family} {classes} classes", family, classes=classes)
        yield RunCase(f"{family} half as large", family, weights=_scaled("", by=0.5))
        yield RunCase(f"{family} with a word more", family, seed=3)
    for family in _ENCODERS:
        for task in ("TokenClassification", "QuestionAnswering"):
            for words in WORDS:
                for dtype in ("float32", "bfloat16"):
                    yield RunCase(f"{family} {task} {words} {dtype}", family, task, words,
                                  2 if task.startswith("Q") else 3, dtype)  # fmt: skip
    yield from _unusual()
    for family in _IMAGES:
        for classes in (1, 2, 5):
            yield RunCase(f"{family} {classes}", family, "ImageClassification", classes=classes)
        yield RunCase(f"{family} of one size", family, "ImageClassification", files=_processor(do_resize=False))
        raw = _processor(do_rescale=False, do_normalize=False)
        yield RunCase(f"{family} of 8 bits", family, "ImageClassification", files=raw)
    for family in _SOUNDS:
        yield RunCase(f"{family} float16", family, dtype="float16")
        for classes in (2, 5):
            yield RunCase(f"{family} {classes}", family, classes=classes)


def _unusual() -> Iterator[RunCase]:
    """Numbers, limits and settings that are rare, and right."""
    for family in ("Bert", "Roberta", "Electra"):
        yield RunCase(f"{family} choices", family, "MultipleChoice", files=_choices_of_unequal_length)
    for family in ("Bert", "Roberta", "Electra", "DistilBert", "Albert"):
        for biases in ([0.1, -1e9, 0.2], [0.1, -1e4, 0.2], [1e4, 1e4, 1e4]):
            yield RunCase(f"{family} biases {biases}", family, weights=_biased(biases))
        yield RunCase(f"{family} small numbers", family, classes=1, weights=_small_scores,
                      config={"problem_type": "regression"})  # fmt: skip
        yield RunCase(f"{family} no limit", family, files=_edited("tokenizer_config.json", model_max_length=None))
        yield RunCase(f"{family} odd problem type", family, config={"problem_type": "several"})


def _last_layer(model: Any) -> Any:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]


def _biased(values: list[float]) -> Callable[[Any], None]:
    return lambda model: _last_layer(model).bias.copy_(torch.tensor(values))


def _small_scores(model: Any) -> None:
    for value in _last_layer(model).parameters():
        value.mul_(1e-6)


def truth_of_run(case: RunCase, folder: Path) -> str:
    """Why the checkpoint answers nothing, as Transformers shows it; "" where it answers."""
    try:
        task = "AudioClassification" if case.kind == "sound" else case.task
        auto = getattr(transformers, f"AutoModelFor{task}")
        model = auto.from_pretrained(folder).eval()
        encoded = list(_own_inputs(case, folder))
        with torch.no_grad():
            scores = [_scores(model(**item)) for item in encoded]
        if case.kind == "text" and case.task in ("SequenceClassification", "TokenClassification"):
            name = "text-classification" if case.task == "SequenceClassification" else "token-classification"
            text = SEPARATORS.get(case.words, " ").join(WORDS[case.words][3:8])
            transformers.pipeline(name, model=str(folder))(text)
    except Exception as err:
        return f"raises {type(err).__name__}: {str(err).splitlines()[0][:100] if str(err) else ''}"
    if not all(bool(item.isfinite().all()) for item in scores):
        return "scores that are not finite"
    rows = torch.cat([item.reshape(-1, item.shape[-1]) for item in scores])
    scale = rows.abs().amax(0)
    least = (1e-5 * scale).clamp(min=1e-12 if case.config.get("problem_type") == "regression" else 1e-6)
    if case.kind != "image" and case.dtype == "float32":
        first, *others = scores[:3]  # of one length; texts begin and end with the same word
        floor = 1e-13 if case.config.get("problem_type") == "regression" else 1e-7
        rounding = (1e-6 * first.abs()).clamp(min=floor)  # ten times what single precision rounds
        if all(bool(((first - other).abs() <= rounding).all()) for other in others):
            return "the same scores for inputs of one length"
    spread = rows.amax(0) - rows.amin(0)
    if bool((spread <= least).all()) if case.dtype == "float32" else not bool(spread.any()):
        return f"the same scores for all inputs (spread {float(spread.max()):.2g} of {float(scale.max()):.2g})"
    return ""


def _scores(output: Any) -> torch.Tensor:
    if isinstance(output, tuple):
        return output[0].float()
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1).float()
    return output.logits.float()


def _own_inputs(case: RunCase, folder: Path) -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng(7)
    if case.kind == "image":
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        for at in range(5):
            sides = (32, 32 + 9 * at) if processor.do_resize else (32, 32)
            yield dict(processor(images=draw.integers(0, 256, (*sides, 3), dtype=np.uint8), return_tensors="pt"))
        return
    if case.kind == "sound":
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
        for at in range(5):
            wave = draw.normal(0, 0.2, 8000 + 500 * max(at - 2, 0)).astype(np.float32)
            made = extractor(wave, sampling_rate=16000, return_tensors="pt")
            yield dict(made.to(getattr(torch, case.dtype)))
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for count in (5, 5, 5, 9, 12, 200):
        words = [str(word) for word in draw.choice(WORDS[case.words], count)]
        if count == 5:
            words[0], words[-1] = WORDS[case.words][5], WORDS[case.words][9]
        text = SEPARATORS.get(case.words, " ").join(words)
        if case.task == "MultipleChoice":
            letters = ["".join(draw.choice(list("abcdefgh"), 6)) for _ in range(2)]  # of one length
            made = tokenizer(["which"] * 2, [f"th{item}wa" for item in letters], return_tensors="pt")
            yield {name: value[None] for name, value in made.items()}
            continue
        pair = [words[0], text] if case.task == "QuestionAnswering" else [text]
        most = {} if tokenizer.model_max_length < 1000 else {"max_length": 90}  # as who knows of a missing limit calls
        yield dict(tokenizer(*pair, return_tensors="pt", truncation=True, **most))


@dataclass(frozen=True)
class Ran:
    """A case with its truth and what `check` says."""

    case: str
    truth: str
    verdict: str
    said: str
    ran: bool

    @property
    def is_wrong(self) -> bool:
        return self.verdict == "crashed" or (self.verdict == "passed") == bool(self.truth)


def run_case(case: RunCase, folder: Path, device: str = "cpu") -> Ran:
    """Writes a case and asks both sides: Transformers on the CPU, `check` on a device."""
    place = case.write(folder)
    truth = truth_of_run(case, place)
    try:
        result = headscope.check(
            str(place), "inference", cache=False, run=True, run_device=device, ignore=["HS502", "HS202"]
        )
        told = [f"{item.id} {item.severity.value}: {item.message}" for item in result.findings]
        told += [f"{gap.topic}: {gap.reason}" for gap in result.not_determined]
        return Ran(case.name, truth, result.verdict.value, "; ".join(told)[:400], result.trial is not None)
    except HeadscopeError as err:
        return Ran(case.name, truth, "refused", err.message, False)
    except Exception as err:
        return Ran(case.name, truth, "crashed", f"{type(err).__name__}: {err}", False)


def run_here() -> None:
    """Lets runs be in this process: a process for each of hundreds of small models would take an hour."""
    from headscope.shared.trial.opening import run_checkpoint

    TrialProcess.begin = lambda self: None  # type: ignore[method-assign]
    TrialProcess._run_in_worker = lambda self, opened: run_checkpoint(opened.request, opened.request.run_device)  # type: ignore[method-assign]
    trial_process.Worker = lambda *given: nullcontext()  # type: ignore[assignment, misc]
    trial_process._call_worker = lambda worker, size, function, *given: function(*given)  # type: ignore[assignment]


def chosen(
    description: str | None, broken: Sequence[NamedCase], healthy: Sequence[NamedCase], *flags: str
) -> tuple[argparse.Namespace, list[NamedCase]]:
    """The options of a whole table and its cases that they choose; prepares this process to judge them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--every", type=int, default=1, help="one of every so many cases")
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--kind", choices=("broken", "healthy", "all"), default="all")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    run_here()
    cases = {"broken": broken, "healthy": healthy, "all": (*broken, *healthy)}[given.kind]
    return given, [case for case in sampled(cases, given.every) if given.only in case.name]


def main() -> int:
    """Prints each disagreement and a summary; fails if there is any."""
    counts = Counter[str]()
    for case in chosen(__doc__, tuple(broken()), tuple(healthy()))[1]:
        with tempfile.TemporaryDirectory() as folder:
            found = run_case(case, Path(folder) / "model")
        kind = "broken" if found.truth else "healthy"
        counts.update([kind, *([] if found.ran else [f"{kind}: not run"])])
        if found.is_wrong:
            counts[f"{kind}: wrong"] += 1
            print(f"{found.case}: {found.truth or 'works'} | {found.verdict}: {found.said}", flush=True)
    print(dict(sorted(counts.items())))
    return int(any("wrong" in name for name in counts))


if __name__ == "__main__":
    sys.exit(main())
