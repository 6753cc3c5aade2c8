"""Datasets: folders of Parquet made from trajectories, one row a segment, that every trainer reads."""

from offline_arl.datasets.bc import BCConfig, build_bc
from offline_arl.datasets.manifest import DatasetManifest
from offline_arl.datasets.return_conditioned import ReturnConditionedConfig, build_return_conditioned
from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.datasets.transitions import TransitionsConfig, build_transitions

__all__ = [
    "BCConfig",
    "DatasetManifest",
    "ReturnConditionedConfig",
    "SegmentDataset",
    "SegmentRow",
    "TransitionsConfig",
    "build_bc",
    "build_return_conditioned",
    "build_transitions",
]
