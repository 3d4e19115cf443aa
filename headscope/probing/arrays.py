"""The type of an array of any numbers; a docstring says which axes it has."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
