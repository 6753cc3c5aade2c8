"""Attributes of spans: tagged values, JSON texts, and values that were flattened to dotted keys with indexes."""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.primitives.values import as_list, as_object, as_text

Attributes = dict[str, Any]


def read_attributes(values: object) -> dict[str, Any]:
    """Attributes from their list of `{key, value}`; an object (some writers flatten it) stays as it is."""
    if isinstance(values, dict):
        return values
    found = {}
    for item in as_list(values):
        key = as_text(as_object(item).get("key"))
        if key is not None:
            found[key] = read_value(item.get("value"))
    return found


def read_value(value: object) -> Any:
    """A tagged value (`{"intValue": "8423"}`) as a plain one; 64-bit integers are strings in JSON."""
    if not isinstance(value, dict):
        return value
    for tag, item in value.items():
        if item is None:  # some writers list all tags
            continue
        name = tag.replace("_", "").lower()
        if name == "arrayvalue":
            return [read_value(element) for element in as_list(as_object(item).get("values"))]
        if name == "kvlistvalue":
            return read_attributes(as_object(item).get("values", []))
        if name == "intvalue" and isinstance(item, str):
            try:
                return int(item) if len(item) < 21 else item
            except ValueError:
                return item
        if name in ("stringvalue", "boolvalue", "doublevalue", "bytesvalue", "intvalue"):
            return item
    return None


def json_value(value: object, where: str) -> Any:
    """The value of an attribute that holds JSON text; a structured value stays as it is.

    Raises:
        RecordRefusedError: The text is not JSON. A text that ends early was cut by a limit of the SDK.
    """
    if not isinstance(value, str):
        return value
    try:
        return decode_json(value.encode())
    except UnicodeEncodeError as error:
        raise RecordRefusedError(f"{where}: the text is not Unicode: {error.reason}") from error
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise RecordRefusedError(
                f"{where}: the JSON text is cut off after {len(value)} characters (attribute length limit)"
            ) from error
        raise RecordRefusedError(f"{where}: the text is not JSON: {error}") from error
    except RecursionError as error:
        raise RecordRefusedError(f"{where}: JSON is nested too deeply") from error


def subtree(attributes: Attributes, prefix: str) -> Any:
    """The value under `prefix`, however it is stored; None where there is nothing.

    It may be one value, keys below the prefix (`llm.input_messages.10.message.role`), objects within objects, or a
    list of objects with dotted keys (data frames).

    Raises:
        RecordRefusedError: An index is missing between others: the SDK dropped attributes.
    """
    if prefix in attributes:
        return _nested_keys(attributes[prefix], prefix)
    below = {key[len(prefix) + 1 :]: value for key, value in attributes.items() if key.startswith(prefix + ".")}
    if below:
        return _nest(below, prefix)
    head, _, tail = prefix.partition(".")
    inner = attributes.get(head)
    return subtree(inner, tail) if tail and isinstance(inner, dict) else None


def keys_below(attributes: Attributes, *prefixes: str) -> set[str]:
    """The keys that are one of the prefixes or start with one and a dot."""
    return {key for key in attributes if any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)}


def _nest(flat: Attributes, where: str) -> Any:
    """Objects and lists from dotted keys; a level whose keys are all numbers is a list, in numeric order."""
    groups: dict[str, Attributes] = {}
    for key, value in flat.items():
        head, dot, tail = key.partition(".")
        groups.setdefault(head, {})[tail if dot else ""] = value
    built = {
        head: _nested_keys(items[""], f"{where}.{head}") if "" in items else _nest(items, f"{where}.{head}")
        for head, items in groups.items()
    }
    if all(head.isascii() and head.isdigit() and len(head) < 10 for head in built):
        order = sorted(built, key=int)
        for index, head in enumerate(order):
            if int(head) != index:
                raise RecordRefusedError(f"{where}: entry {index} of {int(order[-1]) + 1} is missing")
        return [built[head] for head in order]
    return built


def _nested_keys(value: Any, where: str) -> Any:
    """A list of objects with dotted keys, nested; anything else as it is."""
    if isinstance(value, list):
        return [_nested_keys(item, where) for item in value]
    if isinstance(value, dict) and any(isinstance(key, str) and "." in key for key in value):
        return _nest(value, where)
    if isinstance(value, dict):
        return {key: _nested_keys(item, where) for key, item in value.items()}
    return value
