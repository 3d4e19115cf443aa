"""Fields of the configuration that a head reads: found in the source of the classes that make it."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import lru_cache

from torch import nn
from transformers import PreTrainedModel

from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.upstream.python import parse

# Read by every class for its plumbing: a head doesn't depend on them.
_GENERIC = {
    "return_dict", "use_return_dict", "output_attentions", "output_hidden_states", "use_cache", "problem_type",
    "model_type", "to_dict", "get_text_config", "name_or_path", "dtype", "torchscript", "is_encoder_decoder",
    "chunk_size_feed_forward", "gradient_checkpointing", "loss_type", "architectures",
}  # fmt: skip


def config_fields_read(head: HeadSlice) -> tuple[str, ...]:
    """Lists the configuration fields that the classifier's class and the modules of its head read, sorted."""
    modules = (module for operation in head.operations for module in operation.modules if module is not head.base)
    # A module that holds the base model is a wrapper around it, not a part of the head such as a pooler.
    own = dict.fromkeys(type(module) for module in modules if head.base is None or head.base not in module.modules())
    classes = dict.fromkeys([type(head.execution.model), *own])
    return tuple(sorted({name for cls in classes for part in _model_classes(cls) for name in _fields_in(part)}))


def _model_classes(cls: type) -> Iterable[type]:
    """Yields the class and those it inherits from that are model code."""
    for part in cls.__mro__:
        if part is PreTrainedModel or part is nn.Module:
            return
        if not part.__module__.startswith("torch"):
            yield part


@lru_cache(maxsize=512)
def _fields_in(cls: type) -> tuple[str, ...]:
    try:
        lines, _ = inspect.findsource(sys.modules[cls.__module__])
        return _fields_by_class("".join(lines))[cls.__qualname__]
    except (KeyError, OSError, TypeError, SyntaxError):  # not from a file that is imported: IPython knows its cells
        return _fields_in_source_of(cls)


def _fields_in_source_of(cls: type) -> tuple[str, ...]:
    try:
        return _fields_read(parse(textwrap.dedent(inspect.getsource(cls))))
    except (OSError, TypeError, SyntaxError):
        return ()


@lru_cache(maxsize=64)
def _fields_by_class(source: str) -> dict[str, tuple[str, ...]]:
    """Maps the qualified name of each class in a file to the configuration fields that it reads."""
    # `inspect.getsource` would parse the whole file again for every class in it.
    found: dict[str, tuple[str, ...]] = {}
    for name, node in _class_definitions(parse(source), ""):
        found.setdefault(name, _fields_read(node))
    return found


def _class_definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yields every class below `node` with its qualified name, as `__qualname__` spells it."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name):
                yield prefix + name, child
                yield from _class_definitions(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _class_definitions(child, f"{prefix}{name}.<locals>.")
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from _class_definitions(child, prefix)


def _fields_read(tree: ast.AST) -> tuple[str, ...]:
    return tuple(sorted(set(_attributes_of_config(tree)) - _GENERIC))


def _attributes_of_config(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=holder, attr=name) if _is_config(holder):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[holder, ast.Constant(value=str(name)), *_]):
                if _is_config(holder):
                    yield name


def _is_config(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="config") | ast.Attribute(attr="config"):
            return True
        case ast.Call(func=ast.Attribute(value=inner, attr="get_text_config")):
            return _is_config(inner)
    return False
