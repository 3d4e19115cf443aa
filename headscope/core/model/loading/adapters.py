"""Effect of `PeftModel.from_pretrained` on a base model: which parameters an adapter replaces, which it changes.

PEFT matches `modules_to_save` against the ends of module names, adds names for some tasks, and saves the
modules it matched whole, under the parameter names of the model. So headscope trusts the file over the configuration.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from headscope.core.facts import (
    AdapterFacts,
    AdapterFault,
    AdapterFaultKind,
    Carried,
    CheckpointManifest,
    Gap,
    GapTopic,
    Head,
    Mismatch,
    ParameterOrigin,
    ParameterStatus,
    Task,
    TensorHeader,
    WeightDiff,
    WeightsFormat,
)
from headscope.core.facts.stored.weights import NEW_AT_LOAD, in_layer_order, stored_classes
from headscope.core.model.classes.catalog import task_of_class
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.loading.loader import Loaded, renames_of
from headscope.core.model.loading.origins import header_only_tensors, origin_of
from headscope.core.model.quiet import quiet
from headscope.core.upstream.peft import (
    ADAPTER_NAME,
    GENERATING,
    PREFIXES,
    PREFIXES_OF_TUNERS,
    SAVED_FOR_TASK,
    SUFFIXES,
    AdapterLoad,
    is_quick_pattern,
    load_adapter,
    name_in_base,
    own_class_of,
    virtual_tokens_in,
    without_copies,
)
from headscope.core.upstream.torch import on_meta
from headscope.core.upstream.transformers import model_of_named_class
from headscope.errors import Unsupported

_TASKS = {
    "SEQ_CLS": Task.SEQUENCE_CLASSIFICATION,
    "TOKEN_CLS": Task.TOKEN_CLASSIFICATION,
    "QUESTION_ANS": Task.QUESTION_ANSWERING,
}


@dataclass(frozen=True, slots=True)
class _CarriedTensor:
    """Tensor of an adapter and where it goes: to a parameter whole, or to a module as a change of its output.

    `tensor` is the end of its key behind that module, `lora_A.weight`; empty for a method that headscope does not know.
    """

    carried: Carried
    name: str
    header: TensorHeader
    tensor: str = ""


def task_of_adapter(config: Mapping[str, Any]) -> Task | None:
    """Gives the task that an adapter's configuration names; None where it names none of a classifier."""
    name = config.get("task_type")
    return _TASKS.get(name) if isinstance(name, str) else None


def own_class_in(config: Mapping[str, Any]) -> str:
    """Gives the class of the model that an adapter belongs to, if that isn't a classifier; otherwise ""."""
    name = own_class_of(config)
    return "" if task_of_class(name) is not None else name


def holds_head(diff: WeightDiff) -> bool:
    """True if an adapter gives a parameter outside the base model whole."""
    return any(item.adapter is Carried.SAVED and not item.in_base for item in diff.parameters)


def as_classifier(config: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    """Sets a classifier's task in an adapter's configuration if the class lacks what PEFT's own task looks for.

    PEFT's models of language models take a method of generation from the model inside.
    """
    can_generate = hasattr(choice.cls, "prepare_inputs_for_generation")
    name = next((name for name, task in _TASKS.items() if task is choice.task), None)
    is_replaced = config.get("task_type") in GENERATING and not can_generate and name is not None
    return {**config, "task_type": name} if is_replaced else dict(config)


def with_adapter(
    loaded: Loaded,
    adapter: CheckpointManifest,
    *,
    by_names: bool = False,
    own: tuple[CheckpointManifest, Any] | None = None,
) -> Loaded:
    """Puts the adapter on a loaded base model as PEFT does; the notes and gaps say what PEFT did.

    `by_names` reads where the tensors go from their names alone, as where PEFT raises an error or can't be asked.
    `own` is an adapter that belongs to no classifier, as it is stored, with the configuration of its base model: where
    headscope chose the class, the adapter is held against a model of the adapter's class.
    """
    load = AdapterLoad(unknown="not asked") if by_names or adapter.gaps else _load_headers(loaded.model, adapter)
    # Where PEFT couldn't load it, or loaded it on another class, a name without a place may have one.
    joined = _join_diff(loaded, adapter, load, knows_unused=by_names or not (load.unknown or own))
    if by_names:
        return joined
    if own is not None and not adapter.gaps:
        load = _load_on_own_class(*own)
    gaps = (Gap(GapTopic.ADAPTER_FIT, load.unknown),) if load.unknown and not adapter.gaps else ()
    faults = tuple(_find_faults(load, adapter))
    diff = replace(joined.diff, gaps=(*joined.diff.gaps, *adapter.gaps, *gaps))
    return replace(joined, faults=(*faults, *loaded.faults), diff=diff)


def _load_on_own_class(adapter: CheckpointManifest, config: Any) -> AdapterLoad:
    """Loads an adapter with PEFT on a model of the class that it belongs to."""
    try:
        with quiet(), on_meta():
            model = model_of_named_class(own_class_in(adapter.config), config)
    except Exception as err:  # whatever a foreign constructor raises
        return AdapterLoad(unknown=f"the model that it belongs to can't be built ({type(err).__name__}: {err})")
    return _load_headers(model, adapter)


def _load_headers(model: Any, adapter: CheckpointManifest) -> AdapterLoad:
    """Loads an adapter with PEFT on a copy of the skeleton. Integers count as the floats that they become."""
    readable = [replace(item, dtype="float32") if _is_whole(item) else item for item in adapter.tensors]
    tensors = header_only_tensors(replace(adapter, tensors=tuple(readable)))
    with quiet(), on_meta():
        return load_adapter(deepcopy(model), adapter.config, tensors)


def _is_whole(header: TensorHeader) -> bool:
    return header.dtype.startswith(("int", "uint"))


def _find_faults(load: AdapterLoad, adapter: CheckpointManifest) -> Iterator[AdapterFault]:
    """Yields what PEFT refuses, leaves and lacks, and what it loads as other values than were trained."""
    if adapter.format is WeightsFormat.NONE and adapter.gaps:
        yield AdapterFault(AdapterFaultKind.REFUSED, "weights", "its weight file is missing", "")
    expected = {_plain_key(key): shape for key, shape in load.expected.items()}
    held = {_plain_key(item.key): item for item in adapter.tensors}
    reshaped = [(item, expected[key]) for key, item in held.items() if expected.get(key, item.shape) != item.shape]
    if load.refusal:
        for item, shape in reshaped:
            is_empty = 0 in item.shape and 0 not in shape
            yield AdapterFault(
                AdapterFaultKind.SHAPE, item.key, _format_shape(item.shape), _format_shape(shape), is_empty
            )
        if not reshaped:
            error, text = load.refusal
            yield AdapterFault(AdapterFaultKind.REFUSED, error, f"PEFT raises {error}: {text.rstrip('.')}", "")
    if not load.state:
        return
    used = _used_keys(load, adapter)
    floats = (tensor for tensor in load.state.values() if tensor.is_floating_point())
    into_floats = used.intersection(key for tensor in floats for key in origin_of(tensor))
    for path, factor in load.scalings:
        yield AdapterFault(AdapterFaultKind.SCALING, f"the scaling of {path}", str(factor), "a finite number")
    for item in adapter.tensors:
        if item.key in into_floats and _is_whole(item):
            yield AdapterFault(AdapterFaultKind.WHOLE_NUMBERS, item.key, item.dtype, "floating-point numbers")
    for name in load.missing:
        yield AdapterFault(
            AdapterFaultKind.MISSING, name_in_base(name), "nothing", _format_shape(tuple(load.state[name].shape))
        )
    for item in adapter.tensors:
        if item.key not in used:
            yield AdapterFault(AdapterFaultKind.UNEXPECTED, item.key, _format_shape(item.shape), "nothing")


def _used_keys(load: AdapterLoad, adapter: CheckpointManifest) -> frozenset[str]:
    """Gives the keys that PEFT loads, and those under which it saves a tensor again (a bias of a whole module)."""
    used = frozenset(load.expected).union(*(origin_of(tensor) for tensor in load.state.values()))
    copies = (item.key for item in adapter.tensors if without_copies(item.key) in used)
    return used.union(copies)


def _plain_key(key: str) -> str:
    """Removes the adapter's name from a key."""
    return ADAPTER_NAME.sub(r"\1", key)


def _format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _join_diff(loaded: Loaded, adapter: CheckpointManifest, load: AdapterLoad, *, knows_unused: bool) -> Loaded:
    """Joins the adapter's tensors into the diff: where PEFT put them, or where their names say."""
    diff = loaded.diff
    names = {item.name: item for item in diff.parameters}
    places = _place_tensors(loaded, adapter, load)
    saved = {place.name: place.header for place in places if place.carried is Carried.SAVED}
    held: dict[str, dict[str, TensorHeader]] = {}
    for place in places:
        if place.carried is Carried.ADAPTED:
            held.setdefault(place.name, {})[place.tensor] = place.header
    changed = {name for module, tensors in held.items() for name in _changed_parameters(module, tensors, names)}
    parameters = tuple(_with_adapter_status(item, saved.get(item.name), changed) for item in diff.parameters)
    mismatched = [item for item in diff.mismatched if item.parameter not in saved]
    reshaped = {name: header for name, header in saved.items() if header.shape != names[name].shape}
    mismatched += [Mismatch(name, header.shape, names[name].shape) for name, header in reshaped.items()]
    used = _used_keys(load, adapter) if load.state else {place.header.key for place in places}
    unused = [item.key for item in adapter.tensors if item.key not in used] if knows_unused else ()
    return replace(
        loaded,
        diff=replace(
            diff,
            loaded=sum(item.status is ParameterStatus.LOADED for item in parameters),
            new=tuple(name for name in diff.new if name not in saved),
            mismatched=tuple(sorted(mismatched)),
            unused=tuple(sorted((*diff.unused, *unused), key=in_layer_order)),
            renamed=tuple(item for item in renames_of(parameters) if item.parameter not in saved),
            parameters=parameters,
        ),
    )


def _place_tensors(loaded: Loaded, adapter: CheckpointManifest, load: AdapterLoad) -> list[_CarriedTensor]:
    names = {item.name for item in loaded.diff.parameters}
    modules = {path for path, _ in loaded.model.named_modules()}
    method = str(adapter.config.get("peft_type"))
    if not load.state:
        found = (_place_by_name(header, names, modules, method) for header in adapter.tensors)
        return [place for place in found if place]
    headers = {item.key: item for item in adapter.tensors}
    return [
        place
        for name, tensor in load.state.items()
        for key in origin_of(tensor)
        if (place := _place_tensor(name_in_base(name), headers[key], names, modules))
    ]


def _place_tensor(name: str, header: TensorHeader, names: set[str], modules: set[str]) -> _CarriedTensor | None:
    """Places a tensor of a PeftModel; None for one beside the modules of the base model, like a prompt."""
    if name in names:
        return _CarriedTensor(Carried.SAVED, name, header)
    module = _module_of(name, modules)
    tensor = name.removeprefix(f"{module}.").replace(".default", "")
    return _CarriedTensor(Carried.ADAPTED, module, header, tensor) if module else None


def _place_by_name(header: TensorHeader, names: set[str], modules: set[str], method: str) -> _CarriedTensor | None:
    """Places a key by its name; PEFT prefixes names, and puts `base_layer` where it wraps a module."""
    for prefix in PREFIXES_OF_TUNERS if method in SUFFIXES else PREFIXES:
        if not header.key.startswith(prefix):
            continue
        name = header.key.removeprefix(prefix).replace(".base_layer.", ".")
        found = re.fullmatch(rf".+\.({SUFFIXES.get(method, '.+')})", _plain_key(name))
        if name in names or found:
            return _place_tensor(_plain_key(name), header, names, modules)
    return None


def _module_of(name: str, modules: set[str]) -> str:
    """Finds the longest module path that `name` begins with, or ""."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in modules:
            return path
    return ""


def _with_adapter_status(item: ParameterOrigin, saved: TensorHeader | None, changed: set[str]) -> ParameterOrigin:
    if saved is not None:
        fits = saved.shape == item.shape
        status = ParameterStatus.LOADED if fits else ParameterStatus.MISMATCHED
        return replace(item, status=status, checkpoint_keys=(saved.key,), adapter=Carried.SAVED)
    if item.name in changed:
        return replace(item, adapter=Carried.ADAPTED)
    return item


def _changed_parameters(module: str, tensors: Mapping[str, TensorHeader], names: Iterable[str]) -> list[str]:
    """Gives the parameters of a module that its tensors in an adapter change: all that PEFT would merge them into.

    LoRA leaves the bias alone unless it adds a bias (`lora_B.bias`); IA3 scales it with the module's output
    (`ia3_l` of shape [out, 1]), and leaves it alone where it scales the input ([1, in]). For a method that headscope
    doesn't know, all of the module's parameters count as changed.
    """
    own = [name for name in names if name.rpartition(".")[0] == module]
    scale = tensors.get("ia3_l")
    on_input = scale is not None and len(scale.shape) == 2 and scale.shape[0] == 1
    knows_bias = on_input or (scale is None and "" not in tensors and "lora_B.bias" not in tensors)
    return [name for name in own if not (knows_bias and name.endswith("bias"))]


def classes_in_adapter(diff: WeightDiff, num_labels: int) -> int | None:
    """Gives the class count of the adapter's own tensors, if it differs from the model's; None otherwise.

    Only tensors that the adapter saved whole count, if they differ from the model's in the axis of the classes alone.
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
    """Collects what a report says of the adapter. Without a head, it lists what is not known to be live."""
    config = adapter.config
    task_type = config.get("task_type")
    wanted = _names_in(config.get("modules_to_save"))
    automatic = SAVED_FOR_TASK.get(task_type, ()) if isinstance(task_type, str) else ()
    modules = [path for path, _ in loaded.model.named_modules() if path]
    live = [] if adapter.gaps or head is None else [item for item in head.tensors if item.live]
    lost = tuple(item.name for item in live if item.status in NEW_AT_LOAD)
    in_head = {item.name.rpartition(".")[0] for item in head.parameters} if head else set()
    own = {item.name for item in head.tensors} if head else set()
    others = [item.name for item in loaded.diff.parameters if item.name not in own]
    adapted = {item.name.rpartition(".")[0] for item in loaded.diff.parameters if item.adapter is Carried.ADAPTED}
    saved = {item.name for item in loaded.diff.parameters if item.adapter is Carried.SAVED}
    promised = (
        *_missing_promised_modules(modules, {*wanted, *automatic}, saved, loaded),
        *_missing_promised_tokens(loaded, adapter),
    )
    key_error = [item for item in loaded.faults if item.name == "KeyError"]
    promised = promised if key_error and not adapter.gaps else ()
    return AdapterFacts(
        reference=adapter.reference,
        method=str(config.get("peft_type") or "unknown"),
        task_type=task_type if isinstance(task_type, str) else None,
        base=manifest.base,
        base_revision=manifest.base_revision,
        base_commit=manifest.base_commit,
        tensors=len(adapter.tensors),
        saved=tuple(sorted(saved)),
        adapted=tuple(sorted(adapted & in_head)),
        not_carried=lost,
        modules_to_save=modules_to_save(lost, others, modules, wanted),
        promised=promised,
        faults=tuple(item for item in loaded.faults if not promised or item not in key_error),
        own_class="" if holds_head(loaded.diff) else own_class_in(config),
        virtual_tokens=virtual_tokens_in(config),
        load_options=loaded.load_options,
        word_rows=loaded.word_rows,
    )


def _names_in(value: Any) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def modules_to_save(
    lost: Sequence[str], others: Sequence[str], modules: Sequence[str], wanted: Sequence[str]
) -> tuple[str, ...]:
    """Gives the setting that would save the lost parameters, with what the configuration already names and is there."""
    if not lost:
        return ()
    needed = set()
    for path in {_outermost_head_module(name, others) for name in lost if "." in name}:
        last = path.rpartition(".")[2]
        # PEFT compares the ends of module names: the last part of a path is enough if no other module ends with it.
        needed.add(last if [module for module in modules if module.endswith(last)] == [path] else path)
    kept = {name for name in wanted if any(path.endswith(name) for path in modules)}
    return tuple(sorted(kept | needed))


def _outermost_head_module(name: str, others: Sequence[str]) -> str:
    """Finds the outermost module around a parameter that holds parameters of the head alone."""
    best = path = name.rpartition(".")[0]
    while path := path.rpartition(".")[0]:
        if any(other.startswith(f"{path}.") for other in others):
            break
        best = path
    return best


def _missing_promised_modules(
    modules: Iterable[str], names: set[str], saved: set[str], loaded: Loaded
) -> Iterable[str]:
    """Yields the modules that PEFT wraps and looks for in the file, and whose parameters the file does not hold."""
    for path in modules:
        if any(path.endswith(name) for name in names):
            inside = [item.name for item in loaded.diff.parameters if item.name.startswith(f"{path}.")]
            if any(name not in saved for name in inside):
                yield path


def _missing_promised_tokens(loaded: Loaded, adapter: CheckpointManifest) -> Iterable[str]:
    """Yields the rows of embeddings that `trainable_token_indices` promises, and that the file does not hold."""
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


def _alpha_of(path: str, config: Mapping[str, Any]) -> Any:
    """Gives the `lora_alpha` of one module: that of the first pattern that its name ends with, or the general one."""
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if not is_quick_pattern(pattern):
            raise Unsupported(f"alpha_pattern {pattern[:40]!r} is a pattern that headscope does not evaluate", "")
        if re.fullmatch(rf"(.*\.)?({pattern})", path):
            return value
    return config.get("lora_alpha", 8)


def scale_of(path: str, config: Mapping[str, Any], rank: int) -> float:
    """Gives the factor of LoRA's change of one module. Raises Unsupported where only PEFT can tell."""
    for name in ("use_dora", "lora_bias", "use_qalora", "alora_invocation_tokens", "arrow_config"):
        if config.get(name):
            raise Unsupported(f"the adapter sets {name}, whose merge headscope does not compute", "")
    alpha = float(_alpha_of(path, config))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
