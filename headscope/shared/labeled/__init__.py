"""Labeled data: files of rows, read as streams, and what is in their columns of labels. Runs nothing from them."""

from headscope.shared.labeled.label_cells import open_labeled
from headscope.shared.labeled.opening import open_data
from headscope.shared.labeled.rows import RowCells, RowSource
from headscope.shared.labeled.sample import Sampled, sample_in_proportion, sample_rows, sample_spread, sample_texts
from headscope.shared.labeled.tally import tally_labels

__all__ = [
    "RowCells",
    "RowSource",
    "Sampled",
    "open_data",
    "open_labeled",
    "sample_in_proportion",
    "sample_rows",
    "sample_spread",
    "sample_texts",
    "tally_labels",
]
