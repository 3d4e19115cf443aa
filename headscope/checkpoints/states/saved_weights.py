"""The code of repairs that saves the weights in a file of a training run as a file that from_pretrained reads."""

from collections.abc import Iterable, Iterator, Sequence

WRITTEN = "model.safetensors"
"""The file that the repairs write."""
_NAMES = 6


def place_in_dict(path: Iterable[str | int]) -> str:
    """The place of a value in nested dicts, as code: `['state']['model']`."""
    return "".join(f"[{part!r}]" for part in path)


def code_to_save(file: str, path: Iterable[str | int], *, weights_only: bool) -> str:
    """The code that saves the state dict at a place in a pickled file; `weights_only` is PyTorch's option."""
    return (
        "import torch\n"
        "from safetensors.torch import save_file\n"
        f"state = torch.load({file!r}, map_location='cpu', weights_only={weights_only}){place_in_dict(path)}\n"
        # Two names of one tensor can't be saved as one, and a training loop keeps numbers among the tensors.
        "state = {key: value.clone() for key, value in state.items() if torch.is_tensor(value)}\n"
        f"save_file(state, {WRITTEN!r}, metadata={{'format': 'pt'}})"
    )


def on_imports(names: Sequence[str]) -> Iterator[str]:
    """What loading a pickle imports, as evidence; nothing for one that PyTorch loads with `weights_only=True`."""
    if names:
        more = ", ..." if len(names) > _NAMES else ""
        yield f"loading it imports {', '.join(names[:_NAMES])}{more}"
