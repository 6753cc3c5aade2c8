"""Converting chunks of raw records to encoded trajectories: the part of ingestion that runs in parallel."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from offline_arl.errors import DataError
from offline_arl.logs.adapter import LogAdapter, RawRecord, RecordRefusedError, RecordSetApartError, adapter_named
from offline_arl.logs.records import explain
from offline_arl.trajectories.encoding import EncodedTrajectory, encode_trajectory

logger = logging.getLogger(__name__)


class Converted(NamedTuple):
    """What became of one record: trajectories, a reason to refuse it, or a reason to set it apart."""

    key: bytes
    trajectories: list[EncodedTrajectory]
    refused: str | None = None
    set_apart: str | None = None


def record_key(record: RawRecord, real_path: str) -> bytes:
    """Identity of a record: the file's resolved path, the position in it and the content; 16 bytes.

    The path is the resolved one, not the one that was typed, so that the same file named in another way is
    recognized, and files of the same name in different folders stay apart.
    """
    identity = f"{real_path}\0{record.position}\0{record.sha256}".encode(errors="surrogateescape")
    return hashlib.blake2b(identity, digest_size=16).digest()


def convert_chunk(adapter_name: str, real_path: str, records: Sequence[RawRecord]) -> list[Converted]:
    """Convert records of one file, in order; never raises on what a record holds."""
    adapter = adapter_named(adapter_name)
    return [convert_record(adapter, real_path, record) for record in records]


def convert_record(adapter: LogAdapter, real_path: str, record: RawRecord) -> Converted:
    """Convert one record; whatever is wrong with it becomes the reason of a refusal."""
    key = record_key(record, real_path)
    if record.problem is not None:
        return Converted(key, [], refused=record.problem)
    try:
        return Converted(key, [encode_trajectory(trajectory) for trajectory in adapter.convert(record)])
    except RecordRefusedError as error:
        return Converted(key, [], refused=str(error))
    except RecordSetApartError as error:
        return Converted(key, [], set_apart=str(error))
    except msgspec.MsgspecError as error:
        return Converted(key, [], refused=explain(record.raw, error))
    except DataError as error:
        return Converted(key, [], refused=str(error))
    except RecursionError:
        return Converted(key, [], refused="JSON is nested too deeply")
    except Exception as error:
        # One strange record, or a fault in a third party's adapter, must not end the ingestion of millions.
        logger.exception("%s: the adapter %s failed", record.where, adapter.name)
        return Converted(key, [], refused=f"the adapter {adapter.name} failed: {type(error).__name__}: {error}")
