"""The tensors of a model in memory, by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.core.upstream.peft import PROMPTS

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor of the model by its name; `tied_to` is the name under which the same tensor came before."""

    name: str
    tensor: torch.Tensor
    is_buffer: bool = False
    is_persistent: bool = True
    tied_to: str = ""


def tensors_of(module: nn.Module) -> Iterator[LiveTensor]:
    """Lists the parameters and buffers of a model under all their names."""
    persistent = set(module.state_dict(keep_vars=True))
    first: dict[int, str] = {}
    parameters = ((name, item, False) for name, item in module.named_parameters(remove_duplicate=False))
    buffers = ((name, item, True) for name, item in module.named_buffers(remove_duplicate=False))
    for name, tensor, is_buffer in (*parameters, *buffers):
        source = first.setdefault(id(tensor), name)
        yield LiveTensor(name, tensor, is_buffer, name in persistent, "" if source == name else source)


def prompts_of(module: nn.Module) -> Iterator[LiveTensor]:
    """Lists the virtual tokens of PEFT's prompt methods, which are beside the model."""
    for part in module.modules():
        if callable(getattr(part, "get_base_model", None)) and "prompt_encoder" in dict(part.named_children()):
            for name, tensor in part.get_submodule("prompt_encoder").named_parameters(prefix=PROMPTS):
                # Prompt methods may train more, such as an encoder of the prompt; only the tokens themselves are
                # stored.
                if name.endswith(".embedding.weight"):
                    yield LiveTensor(name, tensor)


def is_of_transformers(module: Any) -> bool:
    """True if a model is an instance of Transformers' model class."""
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)


def models_of_transformers(module: nn.Module) -> Iterator[tuple[str, PreTrainedModel]]:
    """Finds the models of Transformers in a module, each with its path; leaves out those inside of others."""
    found: list[str] = []
    for path, part in module.named_modules():
        if is_of_transformers(part) and not any(path.startswith(f"{other}.") or not other for other in found):
            found.append(path)
            yield path, part
