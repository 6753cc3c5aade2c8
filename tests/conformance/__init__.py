"""The objectives as cases of one suite, `tests/unit/objectives/test_conformance.py`."""

from conformance.case import Case, Inputs
from conformance.loss_cases import LOSS_CASES
from conformance.preference_cases import PREFERENCE_CASES
from conformance.target_cases import TARGET_CASES
from conformance.token_cases import TOKEN_CASES

CASES: dict[str, Case] = {**LOSS_CASES, **TARGET_CASES, **TOKEN_CASES, **PREFERENCE_CASES}

__all__ = ["CASES", "Case", "Inputs"]
