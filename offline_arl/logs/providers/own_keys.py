"""Keys of this project in chat records: who a trajectory is, what it is linked to, how it was judged.

Other programs use some of the same names; a value of another shape is left where it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.primitives.values import as_text
from offline_arl.logs.slots.contexts import read_contexts
from offline_arl.logs.slots.slot import SlotContext
from offline_arl.trajectories.schema import Branch, Context, Score


def take_links(values: dict[str, Any], count: int) -> dict[str, Any]:
    """Take ids, links and judgements out of a record, as fields of `Trajectory`.

    Args:
        values: Keys of the record; what is understood is taken out.
        count: How many messages it has.
    """
    found: dict[str, Any] = {}
    for name in ("trajectory_id", "parent_trajectory_id"):
        if as_text(values.get(name)):
            found[name] = values.pop(name)
    identifiers = values.get("identifiers")
    if isinstance(identifiers, dict) and all(isinstance(value, str) for value in identifiers.values()):
        found["identifiers"] = values.pop("identifiers")
    branch = _converted(values.get("branch"), Branch)
    if branch is not None and 0 <= branch.message_index <= count:
        found["branch"] = branch
        del values["branch"]
    scores = values.get("scores")
    if isinstance(scores, list) and scores:
        converted = [_converted(score, Score) for score in scores]
        if all(score is not None and _is_within(score.message_index, count) for score in converted):
            found["scores"] = converted
            del values["scores"]
    return found


def take_contexts(values: dict[str, Any], contexts: list[Context]) -> list[Context]:
    """The contexts of a record whose tools change; those that its `tools` make where it has no others.

    Raises:
        RecordRefusedError: A context names a tool that the record does not have.
    """
    logged = values.get("contexts")
    if not isinstance(logged, list) or not logged:
        return contexts
    converted = [_converted(value, SlotContext) for value in logged]
    given = [value for value in converted if value is not None]
    if len(given) != len(logged):
        return contexts
    del values["contexts"]
    tools = msgspec.json.decode(contexts[0].tools) if contexts and contexts[0].tools else []
    return read_contexts(given, tools, "contexts")


def _converted(value: object, kind: type[Any]) -> Any | None:
    """A value as a struct; None where it is none or has a key more, which would be lost."""
    if not isinstance(value, dict) or not value.keys() <= set(kind.__struct_fields__):
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _is_within(index: int | None, count: int) -> bool:
    return index is None or 0 <= index < count
