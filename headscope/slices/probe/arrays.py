"""Type of an array of any numbers; docstrings name its axes."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
