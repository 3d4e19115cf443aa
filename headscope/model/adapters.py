"""What `PeftModel.from_pretrained` does to a base model: which parameters the adapter gives whole, which it changes.

PEFT matches `modules_to_save` against the ends of module names, adds names for some tasks, and saves the
modules it matched whole, under the parameter names of the model. So headscope trusts the file over the configuration.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headscope.facts import (
    AdapterFacts,
    Carried,
    CheckpointManifest,
    Head,
    Mismatch,
    ParameterOrigin,
    ParameterStatus,
    Task,
    TensorHeader,
    WeightDiff,
)
from headscope.facts.weights import NEW_AT_LOAD, stored_classes
from headscope.model.adapter_shapes import METHODS, Fit, check_fit, split_key
from headscope.model.loading import Loaded, renames_of
from headscope.upstream.peft import PREFIXES, PREFIXES_OF_TUNERS, SAVED_FOR_TASK

_TASKS = {
    "SEQ_CLS": Task.SEQUENCE_CLASSIFICATION,
    "TOKEN_CLS": Task.TOKEN_CLASSIFICATION,
    "QUESTION_ANS": Task.QUESTION_ANSWERING,
}


@dataclass(frozen=True, slots=True)
class _CarriedTensor:
    """Where a tensor of an adapter goes: to a parameter whole, or to a module as a change of its output.

    `tensor` is the end of its key behind that module, `lora_A.weight`; empty for a method that headscope does not know.
    """

    carried: Carried
    name: str
    header: TensorHeader
    tensor: str = ""


def task_of_adapter(config: Mapping[str, Any]) -> Task | None:
    """The task that an adapter's configuration names; None where it names none of a classifier."""
    name = config.get("task_type")
    return _TASKS.get(name) if isinstance(name, str) else None


def with_adapter(loaded: Loaded, adapter: CheckpointManifest) -> Loaded:
    """The base model's diff after the adapter was put on it."""
    diff = loaded.diff
    names = {item.name: item for item in diff.parameters}
    modules = dict(loaded.model.named_modules())
    method = str(adapter.config.get("peft_type"))
    placed = [(header, _carried_tensor(header, names, set(modules), method)) for header in adapter.tensors]
    saved = {place.name: place.header for _, place in placed if place and place.carried is Carried.SAVED}
    held: dict[str, dict[str, TensorHeader]] = {}
    for place in (place for _, place in placed if place and place.carried is Carried.ADAPTED):
        held.setdefault(place.name, {})[place.tensor] = place.header
    changed = {name for module, tensors in held.items() for name in _changed(module, tensors, names)}
    parameters = tuple(_carried(item, saved.get(item.name), changed) for item in diff.parameters)
    reshaped = [_mismatch(names[name], header) for name, header in saved.items()]
    mismatched = [item for item in diff.mismatched if item.parameter not in saved]
    mismatched += [item for item in reshaped if item is not None]
    fit = Fit() if adapter.gaps else check_fit(adapter.config, modules, held)
    return replace(
        loaded,
        faults=fit.faults,
        diff=replace(
            diff,
            loaded=sum(item.status is ParameterStatus.LOADED for item in parameters),
            new=tuple(name for name in diff.new if name not in saved),
            mismatched=tuple(sorted(mismatched)),
            unused=tuple(sorted((*diff.unused, *(header.key for header, place in placed if place is None)))),
            renamed=tuple(sorted(item for item in renames_of(parameters) if item.parameter not in saved)),
            parameters=parameters,
            gaps=(*diff.gaps, *adapter.gaps, *fit.gaps),
        ),
    )


def _carried_tensor(
    header: TensorHeader, names: Mapping[str, ParameterOrigin], modules: set[str], method: str
) -> _CarriedTensor | None:
    """Where a key goes; PEFT prefixes names, and puts `base_layer` where it wraps a module."""
    for prefix in PREFIXES_OF_TUNERS if method in METHODS else PREFIXES:
        if not header.key.startswith(prefix):
            continue
        name = header.key.removeprefix(prefix)
        whole = name.replace(".base_layer.", ".")
        if whole in names:
            return _CarriedTensor(Carried.SAVED, whole, header)
        module, tensor = split_key(name, method) if method in METHODS else (_module_of(name, modules), "")
        module = module.replace(".base_layer", "")
        if module in modules and module:
            return _CarriedTensor(Carried.ADAPTED, module, header, tensor)
    return None


def _module_of(name: str, modules: set[str]) -> str:
    """The longest module path that `name` begins with, or ""."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in modules:
            return path
    return ""


def _carried(item: ParameterOrigin, saved: TensorHeader | None, changed: set[str]) -> ParameterOrigin:
    if saved is not None:
        fits = saved.shape == item.shape
        status = ParameterStatus.LOADED if fits else ParameterStatus.MISMATCHED
        return replace(item, status=status, checkpoint_keys=(saved.key,), adapter=Carried.SAVED)
    if item.name in changed:
        return replace(item, adapter=Carried.ADAPTED)
    return item


def _changed(module: str, tensors: Mapping[str, TensorHeader], names: Iterable[str]) -> list[str]:
    """The parameters of a module that its tensors in an adapter change: all that PEFT would merge them into.

    LoRA leaves the bias alone unless it adds a bias (`lora_B.bias`); IA3 scales it with the module's output
    (`ia3_l` of shape [out, 1]), and leaves it alone where it scales the input ([1, in]). For a method that headscope
    doesn't know, all of the module's parameters count as changed.
    """
    own = [name for name in names if name.rpartition(".")[0] == module]
    scale = tensors.get("ia3_l")
    on_input = scale is not None and len(scale.shape) == len(("out", "in")) and scale.shape[0] == 1
    knows_bias = on_input or (scale is None and "" not in tensors and "lora_B.bias" not in tensors)
    return [name for name in own if not (knows_bias and name.endswith("bias"))]


def _mismatch(item: ParameterOrigin, header: TensorHeader) -> Mismatch | None:
    return None if header.shape == item.shape else Mismatch(item.name, header.shape, item.shape)


def classes_in_adapter(diff: WeightDiff, num_labels: int) -> int | None:
    """The class count that the adapter's own tensors have, if it differs from the model's; None otherwise.

    Told by the tensors that the adapter saved whole and that differ from the model's in the axis of the classes only.
    """
    saved = {item.name for item in diff.parameters if item.adapter is Carried.SAVED}
    counts = {
        count
        for item in diff.mismatched
        if item.parameter in saved
        and (count := stored_classes(item.checkpoint_shape, item.model_shape, num_labels)) is not None
    }
    return counts.pop() if len(counts) == 1 else None


def adapter_facts(
    loaded: Loaded, adapter: CheckpointManifest, manifest: CheckpointManifest, head: Head | None
) -> AdapterFacts:
    """What a report says of the adapter in a joined manifest. Without a head, it lists what is not known to be live."""
    config = adapter.config
    task_type = config.get("task_type")
    wanted = _names_in(config.get("modules_to_save"))
    automatic = SAVED_FOR_TASK.get(task_type, ()) if isinstance(task_type, str) else ()
    modules = [path for path, _ in loaded.model.named_modules() if path]
    lost = _not_carried(loaded.diff, head)
    in_head = {item.name.rpartition(".")[0] for item in head.parameters} if head else set()
    saved = {item.name for item in loaded.diff.parameters if item.adapter is Carried.SAVED}
    return AdapterFacts(
        reference=adapter.reference,
        method=str(config.get("peft_type") or "unknown"),
        task_type=task_type if isinstance(task_type, str) else None,
        base=manifest.base,
        base_revision=manifest.base_revision,
        base_commit=manifest.base_commit,
        tensors=len(adapter.tensors),
        saved=tuple(sorted(saved)),
        adapted=tuple(
            sorted(
                {
                    item.name.rpartition(".")[0]
                    for item in loaded.diff.parameters
                    if item.adapter is Carried.ADAPTED and item.name.rpartition(".")[0] in in_head
                }
            )
        ),
        not_carried=lost,
        modules_to_save=modules_to_save(lost, _others(loaded.diff, head), modules, wanted),
        promised=(*_promised(modules, {*wanted, *automatic}, saved, loaded), *_promised_tokens(loaded, adapter)),
        faults=loaded.faults,
    )


def _names_in(value: Any) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _not_carried(diff: WeightDiff, head: Head | None) -> tuple[str, ...]:
    if head is None:
        return ()
    return tuple(item.name for item in head.tensors if item.live and item.status in NEW_AT_LOAD)


def _others(diff: WeightDiff, head: Head | None) -> list[str]:
    """The parameters outside the head."""
    own = {item.name for item in head.tensors} if head else set()
    return [item.name for item in diff.parameters if item.name not in own]


def modules_to_save(
    lost: Sequence[str], others: Sequence[str], modules: Sequence[str], wanted: Sequence[str]
) -> tuple[str, ...]:
    """The setting that would save the lost parameters, with what the configuration already names and is there."""
    if not lost:
        return ()
    needed = {_shortest(_outermost(name, others), modules) for name in lost if "." in name}
    kept = {name for name in wanted if any(path.endswith(name) for path in modules)}
    return tuple(sorted(kept | needed))


def _outermost(name: str, others: Sequence[str]) -> str:
    """The outermost module around a parameter that holds parameters of the head alone."""
    best = path = name.rpartition(".")[0]
    while path := path.rpartition(".")[0]:
        if any(other.startswith(f"{path}.") for other in others):
            break
        best = path
    return best


def _shortest(path: str, modules: Sequence[str]) -> str:
    """The last part of a path if PEFT, which compares ends, finds no other module by it; otherwise the whole path."""
    last = path.rpartition(".")[2]
    return last if [module for module in modules if module.endswith(last)] == [path] else path


def _promised(modules: Iterable[str], names: set[str], saved: set[str], loaded: Loaded) -> Iterable[str]:
    """The modules that PEFT wraps and looks for in the file, and whose parameters the file does not hold."""
    for path in modules:
        if any(path.endswith(name) for name in names):
            inside = [item.name for item in loaded.diff.parameters if item.name.startswith(f"{path}.")]
            if any(name not in saved for name in inside):
                yield path


def _promised_tokens(loaded: Loaded, adapter: CheckpointManifest) -> Iterable[str]:
    """The rows of embeddings that `trainable_token_indices` promises, and that the file does not hold."""
    rows = adapter.config.get("trainable_token_indices")
    if not rows or not isinstance(rows, list | dict) or adapter.gaps:
        return
    embedding = loaded.model.get_input_embeddings()
    held = {header.key for header in adapter.tensors}
    for path, module in loaded.model.named_modules():
        is_wrapped = any(path.endswith(str(name)) for name in rows) if isinstance(rows, dict) else module is embedding
        key = f"{path}.token_adapter.trainable_tokens_delta"
        if path and is_wrapped and not held & {f"{prefix}{key}" for prefix in PREFIXES}:
            yield key
