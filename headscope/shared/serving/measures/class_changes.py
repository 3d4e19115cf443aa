"""How often an engine gives a text another class than the checkpoint."""

import math

from headscope.core.facts.heads.tasks import Activation
from headscope.shared.serving.explaining import Scores
from headscope.shared.serving.served_facts import ClassChanges

_NORMAL_95 = 1.959964
"""The 97.5% quantile of the normal distribution."""


def measure_class_changes(own: Scores, given: Scores, activation: str, *, is_raw: bool) -> ClassChanges | None:
    """Measures how often the most likely class differs or, with several labels per text, the classes above one half."""
    if own.shape[1] < 2 or activation not in {Activation.SOFTMAX, Activation.SIGMOID} or not len(own):
        return None
    if activation == Activation.SOFTMAX:
        differs = own.argmax(1) != given.argmax(1)
    else:
        differs = ((own > 0) != (given > (0 if is_raw else 0.5))).any(1)
    return wilson_interval(int(differs.sum()), len(own))


def wilson_interval(count: int, whole: int) -> ClassChanges:
    """Gives a share of independent texts with its 95% interval (Wilson, 1927), which holds for few texts too."""
    share, square = count / whole, _NORMAL_95**2 / whole
    middle, half = share + square / 2, _NORMAL_95 * math.sqrt(share * (1 - share) / whole + square / (4 * whole))
    return ClassChanges(share, max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square)))
