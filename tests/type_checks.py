"""The type checker of the tests: beartype, with int accepted where float is asked for, as PEP 484 says."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
