"""All formats of exports by name."""

from __future__ import annotations

from collections.abc import Mapping

from offline_arl.errors import UsageError
from offline_arl.logs.exports.atif import AtifExporter
from offline_arl.logs.exports.exporter import Exporter
from offline_arl.logs.exports.openai_chat import OpenAIChatExporter
from offline_arl.logs.exports.prime_rl import PrimeRLExporter
from offline_arl.logs.exports.sharegpt import ShareGPTExporter
from offline_arl.logs.exports.trl import (
    TRLExporter,
    TRLPreferenceExporter,
    TRLPromptCompletionExporter,
    TRLUnpairedExporter,
)
from offline_arl.logs.exports.verl import VerlExporter, VerlRLExporter


def exporters() -> Mapping[str, Exporter]:
    """New instances of all exporters."""
    found: list[Exporter] = [
        OpenAIChatExporter(),
        TRLExporter(),
        TRLPromptCompletionExporter(),
        TRLPreferenceExporter(),
        TRLUnpairedExporter(),
        AtifExporter(),
        VerlExporter(),
        VerlRLExporter(),
        PrimeRLExporter(),
        ShareGPTExporter(),
    ]
    return {exporter.name: exporter for exporter in found}


def exporter_named(name: str) -> Exporter:
    """The exporter of a format.

    Raises:
        UsageError: There is none of this name.
    """
    known = exporters()
    if name not in known:
        raise UsageError(f"unknown export format {name!r}; known: {', '.join(known)}")
    return known[name]
