"""Datasets: folders of Parquet made from trajectories, one row a segment, that every trainer reads."""

from offline_arl.datasets.bc import BCConfig, build_bc
from offline_arl.datasets.segments import DatasetManifest, SegmentDataset, SegmentRenderer, SegmentRow

__all__ = [
    "BCConfig",
    "DatasetManifest",
    "SegmentDataset",
    "SegmentRenderer",
    "SegmentRow",
    "build_bc",
]
