"""`strict`: inside it, a load that leaves the head without the checkpoint's weights raises instead of warning."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from os import PathLike
from types import coroutine
from typing import TYPE_CHECKING, Any

from headscope.core.facts.counting import few_of
from headscope.errors import HeadscopeError, LoadNotJudged, UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.values import read_names
from headscope.slices.loaded.unfilled import (
    find_base,
    find_kept_quiet,
    has_adapter_for_inference,
    holder_of,
    is_allowed,
    is_base_class,
    is_of_adapter,
    judge_in_memory,
    not_loaded,
    read_saved_config,
    refuse_other_things,
    saved_class_count,
)

if TYPE_CHECKING:
    from torch import nn

_BLOCKS: ContextVar[tuple[_Block, ...]] = ContextVar("strict blocks around the running code", default=())
_BASE_INFO: ContextVar[list[Any] | None] = ContextVar("loading infos of the running load", default=None)
_FRESH_CONFIGS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id, as they have no hash
_FRESH = {"num_labels", "id2label", "label2id"}
_OF_PLACE = {"subfolder", "revision", "cache_dir", "token", "_commit_hash"}
_PEFT_LOADS = "peft.auto"
"""The module whose functions load the base model first, without the head that the adapter brings."""
_OF_PEFT = "base_model.model."
"""What PEFT puts before the names of the parameters of the model that it wraps."""
_OF_COUNT = ("sentence_transformers.", "trl.")
"""Packages that give every load a number of classes, so that it doesn't say that the caller asks for a new head."""


@use_case
def strict(model: nn.Module | None = None, *, allow: Iterable[str] | None = ()) -> StrictLoads:
    """Raises an error for a load that doesn't give the head its weights, where Transformers only warns.

    As a context manager or decorator, it judges each `from_pretrained` that runs inside, whatever library calls it. A
    head may be new where the load asks for one (`num_labels=3`, or another number of classes than the checkpoint's, of
    one that isn't a saved classifier of that class), or where `allow` names it; loads by sentence-transformers and TRL,
    which give every load a number, need `allow`. A load that can't be judged gives a `headscope.errors.LoadNotJudged`
    warning. With a model, it judges that model, against the checkpoint that it was loaded from. Base models and others
    without scores of classes (`SamModel`) have no head, and are judged only if nothing was loaded.

    Nested blocks: the innermost decides. Threads that begin while a block is open are judged too; those that ran
    before are not. Afterwards, Transformers is as it was.

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
    loads = StrictLoads(() if allow is None else read_names(allow, "allow"))
    if model is not None:
        refuse_other_things(model)
        judge_in_memory(model, loads.allow)
    return loads


class StrictLoads:
    """The context manager that `strict` gives."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self.allow = allow
        self._blocks: list[_Block] = []

    def __call__(self, function: Any) -> Any:
        """Decorates a function, whose body is the block, even if it is `async` or a generator.

        A generator's block doesn't include what its caller loads while it waits at a `yield`.
        """
        called = type(function).__call__  # of an object that is called as a function
        if any(map(inspect.isasyncgenfunction, (function, called))):
            raise UsageError("strict doesn't judge an async generator", "write `with headscope.strict():` in its body")

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with StrictLoads(self.allow):
                found = function(*args, **kwargs)
            if inspect.iscoroutine(found):
                return self._await_judged(found)
            if inspect.isasyncgen(found) or inspect.isawaitable(found):  # a task, say, whose loads run after the block
                text = f"headscope.strict can't judge the {type(found).__name__} that a decorated function returned"
                warnings.warn(text, LoadNotJudged, stacklevel=2)
            return self._judge_steps(found) if inspect.isgenerator(found) else found

        # Frameworks look at the kind of a function: each has to stay what it was.
        if any(map(inspect.iscoroutinefunction, (function, called))):

            @wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                return await call(*args, **kwargs)

            return run
        if inspect.isgeneratorfunction(function):

            @wraps(function)
            def steps(*args: Any, **kwargs: Any) -> Any:
                return (yield from call(*args, **kwargs))

            return steps
        return call

    async def _await_judged(self, steps: Coroutine[Any, Any, Any]) -> Any:
        return await coroutine(self._judge_steps)(steps)

    def _judge_steps(self, steps: Generator[Any, Any, Any] | Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Runs a generator or coroutine, as `yield from` does, in a block that its caller is not in between steps."""
        with StrictLoads(self.allow):
            block = _BLOCKS.get()[-1]
            resume, value = steps.send, None
            while True:
                try:
                    found = resume(value)
                except StopIteration as end:
                    return end.value
                _BLOCKS.set(_blocks_without(block))
                try:
                    resume, value = steps.send, (yield found)
                except BaseException as err:  # GeneratorExit, too: it closes `steps`
                    resume, value = steps.throw, err
                finally:
                    _BLOCKS.set((*_BLOCKS.get(), block))

    def __enter__(self) -> StrictLoads:
        """Begins to judge loads."""
        block = _Block(self.allow)
        _PATCHES.add(block)
        self._blocks.append(block)
        _BLOCKS.set((*_BLOCKS.get(), block))
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Stops judging, and judges adapters that PEFT has loaded since their base model was."""
        if not self._blocks:
            raise UsageError("strict ends before it began", "write `with headscope.strict():`")
        # The end may come in another context or thread than the beginning.
        block = next((one for one in reversed(_BLOCKS.get()) if one in self._blocks), self._blocks[-1])
        self._blocks.remove(block)
        _BLOCKS.set(_blocks_without(block))
        _PATCHES.remove(block)
        if kind is None:
            for model in filter(has_adapter_for_inference, block.loaded):
                _judge_adapter(model, self.allow)


@dataclass(frozen=True, slots=True)
class _Lost:
    """What the load of a base model didn't give, which an adapter may still bring."""

    reference: str
    names: tuple[str, ...]


_LOST: weakref.WeakKeyDictionary[nn.Module, _Lost] = weakref.WeakKeyDictionary()


@dataclass(eq=False, slots=True)
class _Block:
    allow: tuple[str, ...]
    loaded: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)
    others: weakref.WeakSet[threading.Thread] = field(default_factory=lambda: weakref.WeakSet(threading.enumerate()))


def _blocks_without(block: _Block) -> tuple[_Block, ...]:
    return tuple(other for other in _BLOCKS.get() if other is not block)


class _Patches:
    """The methods of Transformers and PEFT that are replaced while a block is open anywhere in the process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: list[_Block] = []
        self._replaced: list[tuple[type, str, Any, Any]] = []

    def add(self, block: _Block) -> None:
        with self._lock:
            if not self._open:
                self._replace_methods()
            self._open.append(block)
        self.judge_peft()

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
        """Gives the innermost open block around the running code; for a thread that began inside one, that block.

        None for a load of headscope's own.
        """
        with self._lock:
            around = [one for one in _BLOCKS.get() if one in self._open]
            begun = [one for one in self._open if threading.current_thread() not in one.others]
        block = next(reversed(around or begun), None)
        return None if block is None or _is_called_from("headscope.", but=__name__) else block

    def judge_peft(self) -> None:
        """Judges PEFT's loads too, once somebody has imported it: it costs seconds."""
        with self._lock:
            for name in ("PeftModel", "PeftMixedModel") if self._open else ():
                kind = getattr(sys.modules.get("peft"), name, None)
                if kind is not None and not any(owner is kind for owner, *_ in self._replaced):
                    self._replace_method(kind, "load_adapter", _judged_adapter)

    def _replace_methods(self) -> None:
        from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

        if not self._replace_method(PreTrainedModel, "from_pretrained", _judged_load):
            text = "headscope.strict can't judge loads: PreTrainedModel.from_pretrained was replaced"
            warnings.warn(text, LoadNotJudged, stacklevel=5)
        self._replace_method(PreTrainedModel, "_finalize_model_loading", _noted_info)
        for owner in PreTrainedModel.__mro__:
            self._replace_method(owner, "load_adapter", _judged_adapter)
        self._replace_method(AutoConfig, "from_pretrained", _noted_config)
        self._replace_method(PreTrainedConfig, "from_pretrained", _noted_config)

    def _replace_method(self, owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        old = vars(owner).get(name)
        if isinstance(old, classmethod | staticmethod):
            new: Any = type(old)(wraps(old.__func__)(make(old.__func__)))
        elif inspect.isfunction(old):
            new = wraps(old)(make(old))
        else:  # an internal one may be gone in a later version
            return False
        setattr(owner, name, new)
        self._replaced.append((owner, name, old, new))
        return True


_PATCHES = _Patches()


def _judged_load(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `PreTrainedModel.from_pretrained`, which every load of a checkpoint runs."""

    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        block = _PATCHES.block_of_this_load()
        if block is None:
            return load(cls, *args, **kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        config = kwargs.get("config")
        # It was given a number of classes or their names, or a configuration that was loaded with them.
        is_fresh = not _FRESH.isdisjoint(kwargs) or _FRESH_CONFIGS.get(id(config)) is not None
        asked = getattr(config, "num_labels", None)
        noted: list[Any] = []
        token = _BASE_INFO.set(noted)
        try:
            found = load(cls, *args, output_loading_info=True, **kwargs)
        finally:
            _BASE_INFO.reset(token)
        model, info = found if isinstance(found, tuple) else (found, None)
        asked = model.config.num_labels if isinstance(config, str | PathLike) else asked
        reference = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        infos = noted[:1] + ([] if info is None else [info])
        if not infos:  # somebody else's wrapper gives none
            warnings.warn(f"headscope.strict can't judge the load of {reference}", LoadNotJudged, stacklevel=2)
        else:
            options = {name: value for name, value in kwargs.items() if name in _OF_PLACE and value is not None}
            _judge_load(block, model, infos, reference, options, is_fresh=is_fresh, asked=asked)
        return (model, info) if wants_info else model

    return from_pretrained


def _noted_info(finish: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the step of a load that knows what the checkpoint gave, before an adapter is added."""

    def _finalize_model_loading(*args: Any, **kwargs: Any) -> Any:
        given = [{*one.missing_keys} for one in (*args, *kwargs.values()) if hasattr(one, "missing_keys")]
        info = finish(*args, **kwargs)
        noted = _BASE_INFO.get()
        whole = info.to_dict()
        whole["missing_keys"] = {*info.missing_keys, *find_kept_quiet(args[0], set().union(*given), info.missing_keys)}
        if noted is not None:
            noted.append(whole)
        elif (block := _PATCHES.block_of_this_load()) is not None:  # a `from_pretrained` that was bound before
            reference = getattr(args[1] if len(args) > 1 else None, "pretrained_model_name_or_path", None)
            _judge_load(block, args[0], [whole], reference, {}, asked=args[0].config.num_labels)
        return info

    return _finalize_model_loading


def _judged_adapter(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `load_adapter` of PEFT and of Transformers: when it ends, the adapter has brought the head or not."""

    def load_adapter(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(self, *args, **kwargs)
        block = _PATCHES.block_of_this_load()
        # A `from_pretrained` that finds an adapter in the folder judges what both gave.
        if block is not None and _BASE_INFO.get() is None and not kwargs.get("is_trainable"):
            _judge_adapter(find_base(self), block.allow, getattr(result, "missing_keys", ()))
        return result

    return load_adapter


def _noted_config(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the load of a configuration, which Auto classes give the number of classes that they were given."""

    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        found = load(cls, *args, **kwargs)
        if not _FRESH.isdisjoint(kwargs):
            config = found[0] if isinstance(found, tuple) else found
            _FRESH_CONFIGS[id(config)] = config
        return found

    return from_pretrained


def _judge_load(
    block: _Block, model: Any, infos: list[Any], reference: Any, options: Mapping[str, Any], *,
    is_fresh: bool = False, asked: int | None,
) -> None:  # fmt: skip
    """Raises HeadNotLoaded for a model whose scores depend on parameters that the load did not give.

    The infos are that of the weights, and that of an adapter beside them, if there is one; the options say where the
    checkpoint is, and `asked` is the number of classes in the configuration that the load got: some classes change it.
    """
    base_info, adapter_info = infos[0], infos[-1]
    reshaped = {item if isinstance(item, str) else item[0] for item in base_info["mismatched_keys"]}
    missing = {*base_info["missing_keys"], *reshaped}
    lost = sorted(name for name in missing if not is_allowed(name, block.allow))
    if not lost:
        return
    place = "" if reference is None else str(reference)
    saved = read_saved_config(place, options) or model.config.to_dict()
    prefix = "" if getattr(model, "base_model", model) is model else f"{model.base_model_prefix}."
    if {name for name, _ in model.named_parameters()} <= missing:  # nobody who loads asks for that
        raise not_loaded(model, place, lost, saved)
    if not prefix and is_base_class(model):
        return
    inside = [name for name in lost if name.startswith(prefix)]
    head = [name for name in lost if name not in inside]
    is_fresh = is_fresh or asked not in (None, saved_class_count(saved, type(model.config)))
    is_fresh = is_fresh and not any(map(_is_called_from, _OF_COUNT))
    may_be_new = is_fresh and type(model).__name__ not in (saved.get("architectures") or ())
    if inside or not may_be_new:
        head, inside = _split_by_path(model, head, inside)
    if is_fresh:  # another number of classes: who ignores that the sizes differ asks for a new head
        renewed = [name for name in head if name in reshaped or holder_of(name) in map(holder_of, reshaped)]
        inside += [name for name in renewed if prefix and name.startswith(prefix)]
        head = [name for name in head if name not in renewed]
    if may_be_new:
        _LOST[model] = _Lost(place, tuple(head))
        block.loaded.add(model)
        head = []
    unfilled = [name for name in (*head, *inside) if not is_of_adapter(model, name, adapter_info["missing_keys"])]
    if not unfilled:
        return
    if sys.modules.get(_PEFT_LOADS) and _is_called_from(_PEFT_LOADS):
        _PATCHES.judge_peft()
        _LOST[model] = _Lost(place, tuple(unfilled))
        return
    raise not_loaded(model, place, unfilled, saved)


def _split_by_path(model: Any, head: list[str], inside: list[str]) -> tuple[list[str], list[str]]:
    """Splits lost parameters by a trace into those of the head and those before it; leaves out what no score reads."""
    from headscope.core.source.live.live_model import LiveModel

    traced, reason, gaps = None, "headscope could not determine the head path", list[str]()
    try:
        report = LiveModel(model, by_shape=True).own_report
        traced, gaps = report.head, [item.reason for item in report.not_determined]
    except HeadscopeError as err:
        reason = err.message
    except Exception as err:  # a fault of the trace, such as of a class of one's own, is none of the load
        reason = f"{type(err).__name__}: {err}"
    if traced is None:
        if inside:
            _warn_unjudged(inside, reason)
        return head, []
    unread, lost = {*traced.not_live}, [*head, *inside]
    own = {item.name for item in traced.tensors} - unread
    # The trace gives a model texts, so that it doesn't say what images or sounds would need.
    if gaps and (beside := [name for name in lost if name in unread]):
        _warn_unjudged(beside, gaps[0])
    elif len(getattr(model.config, "sub_configs", ())) > 1 and (beside := [name for name in lost if name in unread]):
        _warn_unjudged(beside, "the model takes several kinds of input")
    elif beside := [name for name in head if name in unread]:
        _warn_unjudged(beside, "the first scores don't, and other outputs of the model may")
    return [name for name in lost if name in own], [name for name in lost if name not in own | unread]


def _warn_unjudged(names: list[str], reason: str) -> None:
    text = f"headscope.strict can't tell whether scores depend on {few_of(names)}: {reason}"
    warnings.warn(text, LoadNotJudged, stacklevel=6)


def _judge_adapter(model: nn.Module, allow: tuple[str, ...], missing: Iterable[str] = ()) -> None:
    """Raises HeadNotLoaded for a base model to whose head a loaded adapter gave nothing; `missing` its file lacks."""
    pending = _LOST.pop(model, None)
    names, own = () if pending is None else pending.names, {name.removeprefix(_OF_PEFT) for name in missing}
    lost = [name for name in names if not (is_of_adapter(model, name, own) or is_allowed(name, allow))]
    if pending is not None and lost:
        raise not_loaded(model, pending.reference, lost, {}, "neither the base model nor the adapter gives")


def _is_called_from(module: str, but: str = "") -> bool:
    """True if a function of that module, or of a package that ends in a dot, waits for the running code."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != but and (name.startswith(module) if module.endswith(".") else name == module):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
