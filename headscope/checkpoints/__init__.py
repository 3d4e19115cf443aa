"""Checkpoints, from what a user named to a manifest: local files, the Hub, snapshots. Doesn't use torch."""

from headscope.checkpoints.checkpoint_files import (
    FileReader,
    TensorBytes,
    files_beside,
    open_sidecar,
    path_in,
    read_tokenizer_settings,
)
from headscope.checkpoints.contents.tokenizer_file import TokenIds, read_token_ids, read_vocabulary
from headscope.checkpoints.contents.weights import with_weight_file
from headscope.checkpoints.decision import read_decision_head, refuse_decision_files
from headscope.checkpoints.edit_record import EDIT_RECORD, digests_of, edit_notice
from headscope.checkpoints.foreign.libraries import refuse_model_type
from headscope.checkpoints.foreign.timm import is_of_timm, is_timm_wrapper, timm_contents
from headscope.checkpoints.reading import read_manifest
from headscope.checkpoints.saved import Saved, SavedPart, read_save
from headscope.checkpoints.score_heads import VALUE_HEAD_FILES, labels_notice, score_heads_of
from headscope.checkpoints.snapshot import bundled_snapshots, snapshot_text, write_snapshot

__all__ = [
    "EDIT_RECORD",
    "VALUE_HEAD_FILES",
    "FileReader",
    "Saved",
    "SavedPart",
    "TensorBytes",
    "TokenIds",
    "bundled_snapshots",
    "digests_of",
    "edit_notice",
    "files_beside",
    "is_of_timm",
    "is_timm_wrapper",
    "labels_notice",
    "open_sidecar",
    "path_in",
    "read_decision_head",
    "read_manifest",
    "read_save",
    "read_token_ids",
    "read_tokenizer_settings",
    "read_vocabulary",
    "refuse_decision_files",
    "refuse_model_type",
    "score_heads_of",
    "snapshot_text",
    "timm_contents",
    "with_weight_file",
    "write_snapshot",
]
