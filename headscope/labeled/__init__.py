"""Labeled data: files of rows, read as streams, and what is in their columns of labels. Runs nothing from them."""

from headscope.labeled.label_cells import open_labeled
from headscope.labeled.opening import open_data
from headscope.labeled.rows import RowCells, RowSource
from headscope.labeled.sample import Sampled, sample_in_proportion, sample_rows, sample_spread, sample_texts
from headscope.labeled.tally import tally_labels

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
