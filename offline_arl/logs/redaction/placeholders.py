"""Placeholders: a keyed hash of a value, so that it is the same everywhere and says nothing to who has no key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

KEY_BYTES = 32
# 40 bits: among a million values of one kind the chance that any two meet is one in two; among 10,000 it is 5e-5.
_DIGITS = 10
PLACEHOLDER = re.compile(rf"<[A-Z][A-Z0-9_]*_[0-9a-f]{{{_DIGITS}}}>")


def new_key() -> bytes:
    """A random key."""
    return secrets.token_bytes(KEY_BYTES)


def key_id(key: bytes) -> str:
    """A name for a key, by which another one in its place is noticed; nothing can be computed from it."""
    return hmac.new(key, b"offline_arl redaction key", hashlib.sha256).hexdigest()[:16]


def placeholder(key: bytes, label: str, value: str) -> str:
    """The placeholder of a value.

    >>> placeholder(b"0" * 32, "EMAIL", "ann@example.com")
    '<EMAIL_91d6550481>'
    """
    message = f"{label}\0{value}".encode(errors="surrogatepass")
    return f"<{label}_{hmac.new(key, message, hashlib.sha256).hexdigest()[:_DIGITS]}>"
