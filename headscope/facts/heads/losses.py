"""Losses by their PyTorch names, and what each makes of the scores."""

_ACTIVATIONS = {
    "CrossEntropyLoss": "softmax",
    "BCEWithLogitsLoss": "sigmoid",
    "MSELoss": "none",
    "L1Loss": "none",
    "SmoothL1Loss": "none",
}


def activation_for(loss: str) -> str:
    """The function that turns the scores into probabilities under `loss`; `not determined` for an unknown loss."""
    return _ACTIVATIONS.get(loss, "not determined")
