"""Which tensors of zeros and ones are the mask: those that keep what the inputs' mask keeps, or leave that out."""

import torch

from headscope.trace.record.execution import Execution
from headscope.trace.replay.picks import inputs_behind, is_mask_of_rows


def mask_name(tensor: torch.Tensor, producer: int, execution: Execution) -> str:
    """`mask`, `~mask`, or "" for a tensor that is neither.

    For texts it is compared with the rows of the probe; for other inputs with the one input that is called a mask. What
    two inputs make is the mask by chance only.
    """
    if tensor.is_meta or not is_binary(tensor) or len(inputs_behind([(tensor, producer)], execution)) > 1:
        return ""
    if execution.probe.rows:
        if is_mask_of_rows(tensor, execution):
            return "mask"
        return "~mask" if is_mask_of_rows(tensor == 0, execution) else ""
    masks = [value for name, value in execution.probe.inputs.items() if "mask" in name]
    if len(masks) != 1 or not isinstance(masks[0], torch.Tensor):
        return ""
    return "mask" if tensor is masks[0] else _of_frames(tensor, masks[0]) if producer >= 0 else ""


def _of_frames(tensor: torch.Tensor, given: torch.Tensor) -> str:
    """What a mask of frames is that follows from a mask of finer samples: rows that are whole there are whole here, and
    the others end early.
    """
    if tensor.dim() < 2 or tensor.shape[0] != given.shape[0]:
        return ""
    whole = given.reshape(len(given), -1).bool().all(1)
    kept = tensor.reshape(len(tensor), tensor.shape[1], -1).bool()
    if not bool(whole.any()) or not bool((kept == kept[..., :1]).all()):
        return ""
    for name, mask in (("mask", kept[..., 0]), ("~mask", ~kept[..., 0])):
        ends_once = bool((mask[:, :-1] | ~mask[:, 1:]).all())
        if bool(mask[whole].all()) and ends_once and bool(mask[:, 0].all()):
            return name
    return ""


def is_other_mask(tensor: torch.Tensor, producer: int, execution: Execution) -> bool:
    """Whether a tensor of zeros and ones keeps other positions of a text than the mask does."""
    known = not tensor.is_meta and bool(execution.probe.rows) and tensor.numel() > 1
    return known and is_binary(tensor) and not mask_name(tensor, producer, execution)


def is_binary(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds zeros and ones, or truth values."""
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())
