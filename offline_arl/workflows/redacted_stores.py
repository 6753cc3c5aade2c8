"""Which stores are redacted, and with what: the key file and the manifest's word on it.

A store holds redacted records only, or none: one record that was not redacted would void what the manifest says of
all, and a record that a store knows is never read again, so redaction could not be made up for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from offline_arl.errors import DataError, UsageError
from offline_arl.logs.redaction.config import RedactionConfig
from offline_arl.logs.redaction.detectors import Detectors
from offline_arl.logs.redaction.placeholders import KEY_BYTES, key_id, new_key
from offline_arl.logs.redaction.plan import RedactionPlan
from offline_arl.trajectories import files
from offline_arl.trajectories.store import Store

KEY_FILE = "redaction.key"
_ENTRY = "redaction"


def check_redaction(config: RedactionConfig) -> None:
    """Make sure, before anything is written, that redaction can be done.

    Raises:
        MissingDependencyError: A package that it needs is not installed.
    """
    Detectors(config)


def refuse_if_redacted(store: Store) -> None:
    """Make sure that records may go into a store as they are.

    Raises:
        UsageError: The store holds redacted records only.
    """
    if is_redacted(store):
        raise UsageError(
            f"{store.path}: this store holds redacted records only; ingest with --redact, or into another store"
        )


def redaction_plan(store: Store, config: RedactionConfig) -> RedactionPlan:
    """How records are redacted for a store; makes its key, and notes in its manifest that it is redacted, at first use.

    Raises:
        UsageError: The store holds records that were not redacted, or were in another way, or a writer is at work.
        DataError: The key is missing or another one.
    """
    with files.writer_lock(store.path):
        manifest = store.manifest
        known: dict[str, Any] | None = manifest.configuration.get(_ENTRY)
        if known is None and manifest.parts:
            raise UsageError(
                f"{store.path}: this store holds records that were not redacted; choose another folder with --store "
                "and ingest them again"
            )
        plan = RedactionPlan.of(config, _key(store.path, known))
        entry = {
            "kinds": config.names,
            "configuration_id": plan.configuration_id,
            "key_id": key_id(plan.key),
        }
        if known is None:
            configuration = {**manifest.configuration, _ENTRY: entry}
            files.write_manifest(store.path, msgspec.structs.replace(manifest, configuration=configuration))
        elif known.get("configuration_id") != plan.configuration_id:
            raise UsageError(
                f"{store.path}: the records in this store were redacted with other settings "
                f"(kinds {', '.join(known.get('kinds', []))}); use the same ones, or another store"
            )
        return plan


def ids_as_stored(store: Store, ids: Sequence[str], key: str) -> tuple[str, ...]:
    """Ids as a store has them: in a redacted one also the placeholders of those that were replaced.

    Without the key of the store, or where it was redacted with settings of its own, just the ids as they are given.

    Args:
        store: The store.
        ids: Ids as the logs had them, or as the store has them.
        key: Under which the logs had them, "user_id" for example.

    Raises:
        DataError: The key is another one.
        MissingDependencyError: A package that redaction needs is not installed.
    """
    known: dict[str, Any] | None = store.manifest.configuration.get(_ENTRY)
    if known is None or not (store.path / KEY_FILE).exists():
        return tuple(ids)
    plan = RedactionPlan.of(RedactionConfig(), _key(store.path, known))
    if known.get("configuration_id") != plan.configuration_id:
        return tuple(ids)
    return tuple(dict.fromkeys(text for given in ids for text in (given, plan.redactor.text(given, key))))


def is_redacted(store: Store) -> bool:
    """Whether a store holds redacted records only."""
    return _ENTRY in store.manifest.configuration


def _key(root: Path, known: dict[str, Any] | None) -> bytes:
    """The key of a store; made if it is missing and the store is not redacted yet."""
    path = root / KEY_FILE
    if not path.exists() and known is None:
        with files.told_writing(path):
            _write_privately(path, new_key())
    try:
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({type(error).__name__}); without it new placeholders would not be those that "
            "the store has: restore it from a copy, or ingest into another store"
        ) from error
    if len(key) != KEY_BYTES or (known is not None and known.get("key_id") != key_id(key)):
        raise DataError(f"{path}: is not the key with which this store was redacted; restore it from a copy")
    return key


def _write_privately(path: Path, key: bytes) -> None:
    """Write the key so that it is there whole or not at all, and its owner alone can read it."""
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(key.hex() + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
