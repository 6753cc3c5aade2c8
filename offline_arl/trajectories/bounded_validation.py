"""JSON Schema validation that ends soon, whatever the schema and the value say: both come from logs.

What a general validator does without bound is bounded here: patterns are searched in linear time, comparisons of all
items of a list with each other are replaced, and every step counts. Nothing is ever fetched. A value that cannot be
judged within these bounds is not judged.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema
import msgspec
import polars as pl
from jsonschema.protocols import Validator
from referencing import Registry

from offline_arl.trajectories.text_cache import cached_by_text

# Keywords that one value may be checked against, and how many more for each character that it is written with.
_STEPS = 20_000
_STEPS_PER_CHARACTER = 10
# States of a pattern times characters of a text, about; some microseconds to a second.
_SEARCH_COST = 30_000_000
_REPEATED = re.compile(r"\{(\d+)(?:,(\d*))?\}")
Keyword = Callable[[Any, Any, Any, Any], Iterator[jsonschema.ValidationError] | None]


class NotJudgedError(Exception):
    """Whether a value fits a schema cannot be told, or not within bounds."""


class _Steps(threading.local):
    """The steps that the validation which is under way in a thread may still take."""

    left = 0


_steps = _Steps()


def first_error(schema_json: bytes, value: Any, size: int) -> jsonschema.ValidationError | None:
    """The first error that a schema finds in a value, or None.

    Args:
        schema_json: The schema, a JSON object.
        value: The value, as parsed from JSON.
        size: How many characters it is written with.

    Raises:
        NotJudgedError: The schema is not valid, refers to what is not in it, or takes too many steps.
    """
    validator = _validator(schema_json)
    if validator is None:
        raise NotJudgedError
    _steps.left = _STEPS + _STEPS_PER_CHARACTER * size
    try:
        return next(iter(validator.iter_errors(value)), None)
    except NotJudgedError:
        raise
    except Exception as error:
        # Schemas that recur without end or point to nowhere, numbers that no float holds: the list of what a general
        # validator stumbles over is open, and a check that only adds a warning must not lose a log.
        raise NotJudgedError from error


@cached_by_text(entries=1024)
def _validator(schema_json: bytes) -> Validator | None:
    schema = msgspec.json.decode(schema_json)
    if not isinstance(schema.get("$schema", ""), str):
        return None
    if b'"patternProperties"' in schema_json and b'"unevaluatedProperties"' in schema_json:
        return None  # the one keyword that searches patterns on its own
    found = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        found.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError):
        return None
    # An empty registry: by default, jsonschema would fetch what a logged schema refers to from the network.
    validator: Validator = _bounded(found)(schema, registry=Registry())
    return validator


_bounded_classes: dict[Any, Any] = {}


def _bounded(validator_class: Any) -> Any:
    """The class with keywords that count steps."""
    if validator_class not in _bounded_classes:
        keywords = {**validator_class.VALIDATORS}
        for name, keyword in (("pattern", _pattern), ("uniqueItems", _unique_items)):
            if name in keywords:
                keywords[name] = keyword
        if "patternProperties" in keywords:
            keywords["patternProperties"] = _pattern_properties
            keywords["additionalProperties"] = _additional_properties(keywords["additionalProperties"])
        counted = {name: _counted(keyword) for name, keyword in keywords.items()}
        _bounded_classes[validator_class] = jsonschema.validators.extend(validator_class, counted)
    return _bounded_classes[validator_class]


def _spend(steps: int) -> None:
    _steps.left -= steps
    if _steps.left < 0:
        raise NotJudgedError


def _counted(keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        _spend(1)
        yield from keyword(validator, value, instance, schema) or ()

    return check


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "string") and not _is_found(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _is_found(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(usual: Keyword) -> Keyword:
    def check(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        patterns = schema.get("patternProperties", {})
        if not patterns or not validator.is_type(instance, "object"):
            yield from usual(validator, allowed, instance, schema) or ()
            return
        known = schema.get("properties", {})
        others = [
            name for name in instance if name not in known and not any(_is_found(pattern, name) for pattern in patterns)
        ]
        if isinstance(allowed, Mapping):
            for name in others:
                yield from validator.descend(instance[name], allowed, path=name)
        elif not allowed and others:
            yield jsonschema.ValidationError(f"Additional properties are not allowed ({others[0]!r} was unexpected)")

    return check


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if wanted and validator.is_type(instance, "array"):
        seen = {msgspec.json.encode(_normal(item), order="deterministic") for item in instance}
        if len(seen) < len(instance):
            yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")


def _normal(value: Any) -> Any:
    """The value with numbers written in one way: 1.0 and 1 are equal in JSON Schema."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    return value


def _is_found(pattern: str, text: str) -> bool:
    """Whether a regular expression matches somewhere in a text; in time linear in the text, unlike Python's.

    Raises:
        NotJudgedError: It uses what cannot be searched in linear time (backreferences, looking around), is not
            valid, or is too large.
    """
    _spend(1)
    counts = (int(most or least) for least, most in _REPEATED.findall(pattern[:10_000]))
    if len(pattern) * math.prod(max(count, 1) for count in counts) * len(text) > _SEARCH_COST:
        raise NotJudgedError
    try:
        return bool(pl.Series([text]).str.contains(pattern)[0])
    except (pl.exceptions.PolarsError, UnicodeEncodeError) as error:
        raise NotJudgedError from error
