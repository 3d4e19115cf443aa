"""Facts to text: screens, tables, JSON. Doesn't import torch or use the network."""
