"""`strict`: inside it, a load that leaves the head without the checkpoint's weights raises instead of warning."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from headscope.core.facts.counting import few_of
from headscope.core.facts.report import find_missing
from headscope.errors import HeadNotLoaded, HeadscopeError, LoadNotJudged

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.facts import Report

_BLOCKS: ContextVar[tuple[_Block, ...]] = ContextVar("strict blocks around the running code", default=())
_BASE_INFO: ContextVar[list[Any] | None] = ContextVar("loading infos of the running load", default=None)
_FRESH_CONFIG: ContextVar[weakref.ref[Any] | None] = ContextVar("last config with a given class count", default=None)
_FRESH = {"num_labels", "id2label", "label2id"}
_PEFT_LOADS = "peft.auto"
"""The module whose functions load the base model first, without the head that the adapter brings."""


def strict(model: nn.Module | None = None, *, allow: Iterable[str] = ()) -> StrictLoads:
    """Raises an error for a load that doesn't give the head its weights, where Transformers only warns.

    As a context manager or decorator, it judges each `from_pretrained` that runs inside, whatever library calls it. A
    head may be new where the load asks for one (`num_labels=3`, of a checkpoint that isn't a saved classifier of that
    class), or where `allow` names it. A load that can't be judged gives a `headscope.errors.LoadNotJudged` warning.
    With a model, it judges that model instead, against the checkpoint that it was loaded from.

    Nested blocks: the innermost decides. Threads that a block starts are judged too; those that ran before are not.
    Afterwards, Transformers is as it was.

    Args:
        model: A model in memory to judge now.
        allow: Parameters or modules that may be new, such as `classifier`; `*` stands for any characters.

    Returns:
        The context manager.

    Raises:
        HeadNotLoaded: The checkpoint doesn't give a parameter on which the scores depend.

    Example:
        >>> import headscope
        >>> with headscope.strict():
        ...     pass  # pipeline("text-classification", "my-model")
    """
    loads = StrictLoads((allow,) if isinstance(allow, str) else tuple(allow))
    if model is not None:
        _judge_in_memory(model, loads.allow)
    return loads


class StrictLoads(ContextDecorator):
    """The context manager that `strict` gives."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self.allow = allow
        self._entered: list[_Block] = []

    def _recreate_cm(self) -> StrictLoads:
        return StrictLoads(self.allow)

    def __enter__(self) -> StrictLoads:
        """Begins to judge loads."""
        block = _Block(self.allow)
        _PATCHES.add(block)
        _BLOCKS.set((*_BLOCKS.get(), block))
        self._entered.append(block)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Stops judging, and judges adapters whose head came after the load of their base model."""
        block = self._entered.pop()
        _BLOCKS.set(tuple(other for other in _BLOCKS.get() if other is not block))
        _PATCHES.remove(block)
        if kind is None:
            for pending in block.pending:
                _judge_adapter(pending, self.allow)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A base model whose head an adapter may still bring; `lost` are the parameters that its load didn't give.

    `is_fresh` says that the head was meant to be new: then only an adapter loaded for inference must bring it.
    """

    model: weakref.ref[nn.Module]
    reference: str
    lost: tuple[str, ...]
    is_fresh: bool


@dataclass(eq=False, slots=True)
class _Block:
    allow: tuple[str, ...]
    pending: list[_Pending] = field(default_factory=list)
    others: weakref.WeakSet[threading.Thread] = field(default_factory=lambda: weakref.WeakSet(threading.enumerate()))


class _Patches:
    """The methods of Transformers that are replaced while a block is open anywhere in the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[_Block] = []
        self._replaced: list[tuple[type, str, Any, Any]] = []

    def add(self, block: _Block) -> None:
        with self._lock:
            if not self._open:
                self._replace_methods()
            self._open.append(block)

    def remove(self, block: _Block) -> None:
        with self._lock:
            self._open.remove(block)
            if self._open:
                return
            for owner, name, old, new in reversed(self._replaced):
                if vars(owner).get(name) is new:  # who replaced it since calls ours, which then does nothing
                    setattr(owner, name, old)
            self._replaced.clear()

    def block_of_this_load(self) -> _Block | None:
        """Gives the innermost block around the running code; for a thread that a block started, that block."""
        if around := _BLOCKS.get():
            return around[-1]
        with self._lock:
            return next((one for one in reversed(self._open) if threading.current_thread() not in one.others), None)

    def _replace_methods(self) -> None:
        from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

        for owner, name, make in (
            (PreTrainedModel, "from_pretrained", _judged_load),
            (PreTrainedModel, "_finalize_model_loading", _noted_info),
            (AutoConfig, "from_pretrained", _noted_config),
            (PreTrainedConfig, "from_pretrained", _noted_config),
        ):
            old = vars(owner).get(name)
            if old is not None:  # an internal one may be gone in a later version
                new = type(old)(make(old.__func__))
                setattr(owner, name, new)
                self._replaced.append((owner, name, old, new))


_PATCHES = _Patches()


def _judged_load(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `PreTrainedModel.from_pretrained`, which every load of a checkpoint runs."""

    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        block = _PATCHES.block_of_this_load()
        if block is None:
            return load(cls, *args, **kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        is_fresh = _says_fresh(kwargs)
        noted: list[Any] = []
        token = _BASE_INFO.set(noted)
        try:
            model, info = load(cls, *args, output_loading_info=True, **kwargs)
        finally:
            _BASE_INFO.reset(token)
        reference = str(args[0] if args else kwargs.get("pretrained_model_name_or_path", ""))
        # With an adapter beside the weights, the info is that of the adapter: that of the base model came before.
        _judge_load(block, model, noted[0].to_dict() if noted else info, reference, is_fresh=is_fresh)
        return (model, info) if wants_info else model

    return from_pretrained


def _noted_info(finish: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the step of a load that knows what the checkpoint gave, before an adapter is added."""

    def _finalize_model_loading(*args: Any, **kwargs: Any) -> Any:
        info = finish(*args, **kwargs)
        noted = _BASE_INFO.get()
        if noted is not None:
            noted.append(info)
        return info

    return _finalize_model_loading


def _noted_config(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the load of a configuration, which Auto classes give the number of classes that they were given."""

    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        found = load(cls, *args, **kwargs)
        if not _FRESH.isdisjoint(kwargs):
            config = found[0] if isinstance(found, tuple) else found
            _FRESH_CONFIG.set(weakref.ref(config))
        return found

    return from_pretrained


def _says_fresh(given: Mapping[str, Any]) -> bool:
    """True if a load was given a number of classes or their names, or a configuration that was loaded with them."""
    config, noted = given.get("config"), _FRESH_CONFIG.get()
    return not _FRESH.isdisjoint(given) or (config is not None and noted is not None and noted() is config)


def _judge_load(block: _Block, model: Any, info: Mapping[str, Any], reference: str, *, is_fresh: bool) -> None:
    """Raises HeadNotLoaded for a model whose scores depend on parameters that the load did not give."""
    # A load with another number of classes raises, unless it may ignore the sizes.
    reshaped = [] if is_fresh else [item if isinstance(item, str) else item[0] for item in info["mismatched_keys"]]
    lost = sorted(name for name in {*info["missing_keys"], *reshaped} if not _is_allowed(name, block.allow))
    if not lost:
        return
    base = getattr(model, "base_model", model)
    if base is model:  # no head: a pooler that nobody reads may be new, but something has to be loaded
        if len(lost) >= len(model.state_dict()):
            raise _not_loaded(model, reference, lost)
        return
    prefix = f"{model.base_model_prefix}."
    inside = [name for name in lost if name.startswith(prefix)]
    is_new_kind = type(model).__name__ not in (model.config.architectures or ())
    head = [name for name in lost if name not in inside]
    if inside:
        head, inside = _split_by_path(model, head, inside)
    if is_fresh and is_new_kind:
        block.pending.append(_Pending(weakref.ref(model), reference, tuple(head), is_fresh=True))
        head = []
    if not (head or inside):
        return
    if sys.modules.get(_PEFT_LOADS) and _is_called_from(_PEFT_LOADS):
        block.pending.append(_Pending(weakref.ref(model), reference, (*head, *inside), is_fresh=False))
    elif unfilled := [name for name in (*head, *inside) if not _is_of_adapter(model, name)]:
        raise _not_loaded(model, reference, unfilled)


def _split_by_path(model: nn.Module, head: list[str], inside: list[str]) -> tuple[list[str], list[str]]:
    """Splits lost parameters by a trace into those of the head and those before it; leaves out what no score reads."""
    from headscope.slices.inspect.run import inspect

    try:
        traced = inspect(model).head
    except HeadscopeError as err:
        traced, reason = None, err.message
    else:
        reason = "headscope could not determine the head path"
    if traced is None:
        if not head:  # otherwise it is an error already
            text = f"headscope.strict can't tell whether the scores depend on {few_of(inside)}: {reason}"
            warnings.warn(text, LoadNotJudged, stacklevel=6)
        return head, []
    own = {item.name for item in traced.tensors}
    unread = {*traced.not_live}
    return [*head, *(name for name in inside if name in own - unread)], [
        name for name in inside if name not in own | unread
    ]


def _judge_adapter(pending: _Pending, allow: tuple[str, ...]) -> None:
    """Raises HeadNotLoaded for a base model to whose head the adapter, which is loaded by now, gave nothing."""
    model = pending.model()
    if model is None or (pending.is_fresh and not _has_adapter_for_inference(model)):
        return
    lost = [name for name in pending.lost if not (_is_of_adapter(model, name) or _is_allowed(name, allow))]
    if lost:
        raise _not_loaded(model, pending.reference, lost, "neither the base model nor the adapter gives")


def _judge_in_memory(model: nn.Module, allow: tuple[str, ...]) -> None:
    from headscope.slices.inspect.run import inspect

    report: Report = inspect(model)
    missing = find_missing(report)
    lost = [name for name in (*missing.head, *missing.elsewhere) if not _is_allowed(name, allow)]
    if lost:
        raise _not_loaded(model, report.checkpoint.reference, lost)
    gaps = [gap for gap in report.not_determined if gap.topic in ("checkpoint", "head path")]
    if gaps:
        warnings.warn(f"headscope.strict can't judge the model: {gaps[0].reason}", LoadNotJudged, stacklevel=3)


def _is_allowed(name: str, allow: tuple[str, ...]) -> bool:
    return any(name == one or name.startswith(f"{one}.") or fnmatchcase(name, one) for one in allow)


def _is_called_from(module: str) -> bool:
    """True if a function of that module is waiting for the running code."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _has_adapter_for_inference(model: Any) -> bool:
    """True if PEFT has loaded an adapter into the model that isn't to be trained."""
    configs = getattr(model, "peft_config", None) or {}
    return any(getattr(config, "inference_mode", False) for config in configs.values())


def _is_of_adapter(model: nn.Module, name: str) -> bool:
    """True if PEFT has put the adapter's own copy in the place of the parameter (`modules_to_save`)."""
    module: Any = model
    for part in name.split(".")[:-1]:
        module = getattr(module, part, None)
        if module is None or hasattr(module, "modules_to_save"):
            break
    return hasattr(module, "modules_to_save")


def _not_loaded(model: nn.Module, reference: str, lost: list[str], says: str = "") -> HeadNotLoaded:
    name = type(model).__name__
    says = says or f"{reference or 'the checkpoint'} doesn't give"
    modules = sorted({one.rpartition(".")[0] or one for one in lost})
    saved = name in (getattr(getattr(model, "config", None), "architectures", None) or ())
    hint = "use the save that holds them" if saved else "train the head first"
    return HeadNotLoaded(
        f"{says} {few_of(lost)} of {name}: random at every load",
        f"{hint}; if they are meant to be new: headscope.strict(allow={modules[:4]!r}); `headscope explain HS102`",
        parameters=tuple(lost),
    )
