"""The log formats that ingestion knows."""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import adapters, is_assembling
from offline_arl.logs.registry import built_in_adapters


def formats() -> list[dict[str, Any]]:
    """Every log format, in the order in which detection asks for it.

    Each has `name`, `title`, `keeps` and `lacks` of its adapter, `unit` ("record": each record is an interaction;
    "records": an interaction is spread over several), and `origin` ("offline_arl" or "entry point").
    """
    built_in = {adapter.name for adapter in built_in_adapters()}
    return [
        {
            "name": name,
            # Adapters of others may leave these out: they are for people, and nothing is read by them.
            **{attribute: str(getattr(adapter, attribute, "")) for attribute in ("title", "keeps", "lacks")},
            "unit": "records" if is_assembling(adapter) else "record",
            "origin": "offline_arl" if name in built_in else "entry point",
        }
        for name, adapter in adapters().items()
    ]
