"""What redaction looks for, and what it leaves alone."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from offline_arl.errors import UsageError

Kind = Literal[
    "private_key",
    "jwt",
    "api_key",
    "url_credentials",
    "authorization",
    "password",
    "email",
    "iban",
    "credit_card",
    "us_ssn",
    "phone",
    "ip_address",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PATTERN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")


class RedactionConfig(BaseModel):
    """What is redacted. Two configurations that differ never write into one store.

    Attributes:
        kinds: What is looked for.
        patterns: Regular expressions (of Python's `re`) for what else is to go, by name; the name, in capitals, is
            the start of the placeholder. Where an expression has a group, the first group is what is replaced.
        keep: Regular expressions; a value that one of them matches whole stays.
        phone_regions: Countries (ISO 3166, two letters) whose numbers are recognized without a country code.
        ip_addresses: "public" leaves private, documentation and other reserved addresses, and those of the public
            name servers; "all" replaces every address.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kinds: tuple[Kind, ...] = KINDS
    patterns: dict[str, str] = {}
    keep: tuple[str, ...] = ()
    phone_regions: tuple[str, ...] = ("US",)
    ip_addresses: Literal["public", "all"] = "public"

    @field_validator("kinds")
    @classmethod
    def _in_order(cls, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        return tuple(kind for kind in KINDS if kind in kinds)

    @field_validator("patterns")
    @classmethod
    def _check_patterns(cls, patterns: dict[str, str]) -> dict[str, str]:
        for name, pattern in patterns.items():
            if not _PATTERN_NAME.fullmatch(name) or name.lower() in KINDS:
                raise ValueError(f"the name {name!r} must be letters, digits and _, and none of the kinds")
            if _compiled(pattern).search("") is not None:
                raise ValueError(f"{name}: {pattern!r} matches nothing at all; it would match everywhere")
        return dict(sorted(patterns.items()))

    @field_validator("keep")
    @classmethod
    def _check_keep(cls, keep: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in keep:
            _compiled(pattern)
        return tuple(sorted(keep))

    @field_validator("phone_regions")
    @classmethod
    def _check_regions(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        for region in regions:
            if not re.fullmatch("[A-Z]{2}", region):
                raise ValueError(f"{region!r} is no country of two capital letters")
        return tuple(sorted(regions))

    @property
    def names(self) -> list[str]:
        """The kinds and the names of the patterns."""
        return [*self.kinds, *(name.lower() for name in self.patterns)]


def redaction_config(**settings: Any) -> RedactionConfig:
    """A configuration from what a user said.

    Raises:
        UsageError: A setting is wrong; the message is one line.
    """
    try:
        return RedactionConfig(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"redaction: {where}: {first['msg'].removeprefix('Value error, ')}") from error


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
