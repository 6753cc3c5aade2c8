"""What processes need to redact alike: a configuration and the key of a store."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import lru_cache

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.redaction.config import RedactionConfig
from offline_arl.logs.redaction.placeholders import new_key
from offline_arl.logs.redaction.redactor import Redactor


@dataclass(frozen=True)
class RedactionPlan:
    """A configuration, as JSON, and a key; travels to the processes that convert."""

    configuration: str
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, config: RedactionConfig, key: bytes) -> RedactionPlan:
        """The plan for a configuration."""
        return cls(config.model_dump_json(), key)

    @property
    def configuration_id(self) -> str:
        """A name for the configuration that tells nothing of its patterns, which may name people."""
        return hmac.new(self.key, self.configuration.encode(), hashlib.sha256).hexdigest()[:16]

    def sealed(self, record: RawRecord) -> RawRecord:
        """The record under a keyed hash of its content.

        Who knows all of a record but a few digits could find them by the plain SHA-256, which stores keep.
        """
        content = hashlib.sha256(record.raw).digest()
        record.__dict__["_sha256"] = hmac.new(self.key, b"record" + content, hashlib.sha256).hexdigest()
        return record

    @property
    def redactor(self) -> Redactor:
        """The redactor of this process for this plan; the same one at every call."""
        return _redactor(self)


@lru_cache(maxsize=4)
def _redactor(plan: RedactionPlan) -> Redactor:
    return Redactor(RedactionConfig.model_validate_json(plan.configuration), plan.key)


def redactor_in_memory(redact: bool | RedactionConfig) -> Redactor:
    """A redactor with a key of its own, for what is not written to a store; with the defaults for True."""
    return Redactor(redact if isinstance(redact, RedactionConfig) else RedactionConfig(), new_key())
