"""Preference data from agent logs: pairs, labels, tool-call negatives, and the audit of all of them.

`rows` says what a row is and `folder` how datasets lie on the disk.
"""

from offline_arl.datasets.pairs.folder import PairDataset, PreferenceWriter, UnpairedDataset, load_preferences
from offline_arl.datasets.pairs.rows import PairRow, UnpairedRow
from offline_arl.rewards.preferences import PairKind

__all__ = [
    "PairDataset",
    "PairKind",
    "PairRow",
    "PreferenceWriter",
    "UnpairedDataset",
    "UnpairedRow",
    "load_preferences",
]
