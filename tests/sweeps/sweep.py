"""Random but legal configurations of every classification class: traced, proven by numbers, compared with the loader.

    python -m tests.sweeps.sweep --count 2000 --seed 1 --workers 2

draws sizes, pooling options, label counts, problem types, ties, image and patch sizes. A configuration is legal if the
model that it makes runs on real values. For each legal one, the head must be traced, its gradients must not contradict
the pooling, and the status of every weight must equal what `from_pretrained` says of a file with some tensors left out.
A formula must be equal to the head or be withheld. Prints the counts, and every failure by name.
"""

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WIDTHS = ("hidden_size", "d_model", "dim", "n_embd", "emb_dim", "embed_dim", "embedding_size")
_INNER = ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim")
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_DEPTHS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "summary_type": ("last", "first", "mean", "cls_index"),
    "summary_use_proj": (True, False),
    "summary_activation": ("tanh", None),
    "summary_proj_to_labels": (True, False),
    "classifier_pooling": ("cls", "mean"),
    "classifier_bias": (True, False),
    "classifier_activation": ("gelu", "relu"),
    "use_mean_pooling": (True, False),
    "use_weighted_layer_sum": (True, False),
    "pooler_act": ("tanh", "gelu", "relu"),
    "pooler_hidden_act": ("tanh", "gelu"),
    "hidden_act": ("gelu", "relu", "silu"),
    "tie_word_embeddings": (True, False),
    "pooling_type": ("mean", "max"),
    "classifier_proj_size": (24, 40, 64),
    "xvector_output_dim": (24, 40, 64),
    "reshape_last_stage": (True, False),
    "mean_pooling": (True, False),
}
_MOST_PARAMETERS = 30_000_000


@dataclass
class Result:
    """What became of one configuration: `legal` and then `failures` by name, or why it was not tried.

    `untraced` is the sentence with which headscope reports that it cannot trace the head of a legal one.
    """

    name: str
    changes: dict[str, Any]
    legal: bool = False
    why: str = ""
    kind: str = ""
    agrees: bool | None = None
    formula: str = ""
    reason: str = ""
    untraced: str = ""
    failures: list[str] = field(default_factory=list)


def targets() -> list[tuple[str, str, str]]:
    """(class, model type, task) of every class of the installed Transformers."""
    from headscope.core.model.classes.catalog import all_classes_of_task
    from headscope.facts import Task

    return [(name, kind, task.value) for task in Task for kind, name in all_classes_of_task(task)]


def draw(rng: random.Random, model_type: str) -> tuple[Any, dict[str, Any]]:
    """A random configuration of a family, small, and the fields that were changed."""
    from headscope.core.model.classes.defaults import default_configs

    config, _ = next(iter(default_configs(model_type)))
    changes: dict[str, Any] = {}

    def put(part: Any, name: str, value: Any) -> None:
        if getattr(part, name, None) is None and name not in {"summary_activation"}:
            return
        with suppress(Exception):  # a field may be derived
            setattr(part, name, value)
            changes[name] = value

    heads, width = rng.choice((2, 4)), 8 * rng.choice((4, 5, 6, 7, 8, 9, 11, 12))
    for part in _parts(config):
        for names, value in (
            (_WIDTHS, width),
            (_INNER, rng.randrange(20, 90)),
            (_HEADS, heads),
            (_DEPTHS, rng.choice((1, 2, 3))),
            (("head_dim",), width // heads),
            (("num_key_value_heads",), rng.choice((1, heads))),
            (("vocab_size",), rng.randrange(120, 400)),
        ):
            for name in names:
                if isinstance(getattr(part, name, None), int) and name not in {"embedding_size"}:
                    put(part, name, value)
        for name, values in _CHOICES.items():
            if hasattr(part, name):
                put(part, name, rng.choice(values))
        _draw_image(part, rng, put)
    count = rng.randrange(1, 13)
    config.num_labels = count
    changes["num_labels"] = count
    problems = (
        [None, "regression"] if count == 1 else [None, "single_label_classification", "multi_label_classification"]
    )
    config.problem_type = rng.choice(problems)
    changes["problem_type"] = config.problem_type
    if rng.random() < 0.3:
        text = config.get_text_config()
        if hasattr(text, "pad_token_id"):
            text.pad_token_id = None
            changes["pad_token_id"] = None
    return config, changes


def _parts(config: Any) -> list[Any]:
    names = ("text_config", "vision_config", "audio_config")
    return [config, *(part for name in names if hasattr(part := getattr(config, name, None), "to_dict"))]


def _draw_image(part: Any, rng: random.Random, put: Any) -> None:
    patch, image = getattr(part, "patch_size", None), getattr(part, "image_size", None)
    if isinstance(image, int) and isinstance(patch, int):
        size = rng.choice((4, 8, 16))
        put(part, "patch_size", size)
        put(part, "image_size", size * rng.randrange(1, 7))
    elif isinstance(image, int):
        put(part, "image_size", rng.choice((32, 64, 96, 128, 224)))


def try_one(name: str, model_type: str, task: str, seed: str) -> Result:
    """One random configuration of a class, tried in every way."""
    import torch
    import transformers

    from headscope.core.model.quiet import quiet
    from headscope.core.trace import TokenNames, trace_head
    from headscope.errors import Unsupported
    from headscope.facts import Task

    rng = random.Random(seed)
    result = Result(name, {})
    try:
        cls = getattr(transformers, name)
        config, result.changes = draw(rng, model_type)
        with quiet(), torch.device("meta"):
            skeleton = cls(deepcopy(config))
        if sum(parameter.numel() for parameter in skeleton.parameters()) > _MOST_PARAMETERS:
            raise ValueError("too large for a sweep")
        torch.manual_seed(0)
        with quiet():
            model = cls(deepcopy(config)).eval()
            _run(model, Task(task))
    except Exception as err:  # not legal, or not to be run here
        result.why = f"{type(err).__name__}: {str(err).strip().splitlines()[0][:120] if str(err).strip() else ''}"
        return result
    result.legal = True
    try:
        with quiet():
            trace = trace_head(skeleton, Task(task), TokenNames(), prove=True).trace
        seen = trace.verification
        result.kind, result.agrees = trace.pooling.kind.value, seen.agrees
        result.formula, result.reason = trace.formula, seen.formula_reason
        if seen.agrees is False:
            result.failures.append(f"gradients contradict: {seen.told}")
        result.failures += [f"not determined: {gap.topic}: {gap.reason}" for gap in trace.not_determined]
    except Unsupported as err:  # said in a sentence: not a wrong answer, and listed by name
        result.untraced = err.message
    except Exception as err:
        result.failures.append(f"trace: {type(err).__name__}: {err}")
    result.failures += _against_loader(model, name, rng)
    return result


def _run(model: Any, task: Any) -> None:
    """One forward on real values, a pad token lent: what makes a configuration legal."""
    from headscope.core.trace.batch.probe_batch import build_probe
    from headscope.core.trace.record.execution import run_forward

    run_forward(model, build_probe(model, task), hint="")


def _against_loader(model: Any, name: str, rng: random.Random) -> list[str]:
    """How the status of the weights differs from what a real load says of a file with some tensors left out."""
    import transformers
    from safetensors.torch import load_file, save_file

    import headscope
    from headscope.core.model.quiet import quiet

    with tempfile.TemporaryDirectory() as folder:
        try:
            with quiet():
                model.save_pretrained(folder)
                path = Path(folder, "model.safetensors")
                tensors = load_file(path)
                for key in rng.sample(sorted(tensors), min(3, len(tensors))):
                    del tensors[key]
                tensors["left.over"] = next(iter(tensors.values())).clone()
                save_file(tensors, path, {"format": "pt"})
                _, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
        except Exception:  # what Transformers cannot save or load again has no oracle
            return []
        try:
            weights = headscope.diff_weights(folder, model_class=name, offline=True).weights
        except Exception as err:
            return [f"diff_weights: {type(err).__name__}: {err}"]
    found = {"missing_keys": set(weights.new), "unexpected_keys": set(weights.unused)}
    return [
        f"{what}: headscope {sorted(keys ^ set(info[what]))[:3]} differ from the loader"
        for what, keys in found.items()
        if keys != set(info[what])
    ]


def _calm() -> None:
    import gc

    import torch

    torch.set_num_threads(1)
    gc.set_threshold(200_000, 20, 100)


def sweep(count: int, seed: int, workers: int) -> list[Result]:
    """Results until `count` legal configurations were tried, or three times as many were drawn."""
    pairs = targets()
    drawn = [(*pairs[at % len(pairs)], f"{seed}-{at}") for at in range(3 * count)]
    found: list[Result] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_calm) as pool:
        for result in pool.map(try_one, *zip(*drawn, strict=True), chunksize=8):
            found.append(result)
            if sum(result.legal for result in found) >= count:
                pool.shutdown(cancel_futures=True)
                break
    return found


def summary(results: list[Result]) -> str:
    """The counts as a table in text, then every failure by name."""
    legal = [result for result in results if result.legal]
    failed = [result for result in legal if result.failures]
    equal = [result for result in legal if result.formula]
    lines = [
        f"drawn {len(results)}, legal {len(legal)}, classes {len({result.name for result in legal})}",
        f"gradients agree {sum(result.agrees is True for result in legal)}, "
        f"no claim {sum(result.agrees is None for result in legal)}, "
        f"contradict {sum(result.agrees is False for result in legal)}",
        f"formula equal {len(equal)}, withheld {len(legal) - len(equal)}",
        *(f"  withheld {count}: {why}" for why, count in Counter(item.reason for item in legal if item.reason).items()),
        f"poolings {dict(Counter(result.kind for result in legal))}",
        *(f"  not traced: {item.name} {item.untraced[:200]}" for item in legal if item.untraced),
        f"failed {len(failed)}",
        *(f"  {item.name} {json.dumps(item.changes, default=str)}: {'; '.join(item.failures)}" for item in failed),
        *(f"  not tried {count}: {why}" for why, count in Counter(i.why for i in results if i.why).most_common(25)),
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs the sweep from the command line; 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    results = sweep(options.count, options.seed, options.workers)
    sys.stdout.write(summary(results) + "\n")
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
