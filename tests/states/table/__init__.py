"""Checkpoints as tools really leave them: each row saves one, and is held against what headscope says and repairs."""

from states.table import bare, files, peft_saves, scores, sharded, trainers, training_files, wrapped
from states.table.entry import ENTRIES

__all__ = ["ENTRIES", "bare", "files", "peft_saves", "scores", "sharded", "trainers", "training_files", "wrapped"]
