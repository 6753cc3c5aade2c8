"""Arrow types of the columns that exports to tables share. Nothing of a message is left to inference.

Types that are inferred merge: every call gets the arguments of all other calls as nulls, every tool the parameters of
all other tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from offline_arl import optional

if TYPE_CHECKING:
    from offline_arl.logs.exports.exporter import ToolShapes


def pyarrow() -> Any:
    """The package, or an error that names the command to install it."""
    return optional.require("pyarrow", extra="logs")


def messages_type() -> Any:
    """Of a list of messages (`chat.template_message`) whose arguments are text."""
    pa = pyarrow()
    function = pa.struct([("name", pa.string()), ("arguments", pa.string())])
    call = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", function)])
    return pa.list_(
        pa.struct(
            [
                ("role", pa.string()),
                ("content", pa.string()),
                ("reasoning_content", pa.string()),
                ("tool_calls", pa.list_(call)),
                ("tool_call_id", pa.string()),
                ("name", pa.string()),
            ]
        )
    )


def nested_tools_type(shapes: ToolShapes) -> Any | None:
    """The type that holds all these tool lists as they are; None where they would change one another."""
    pa = pyarrow()
    if not shapes.is_complete or not shapes.lists:
        return None
    lists = [list(tools) for tools in shapes.lists]
    try:
        array = pa.array(lists)
    except pa.ArrowException:
        return None
    # As JSON, since to Python 1 is 1.0 and true, and the order of keys is nothing.
    is_same = msgspec.json.encode(array.to_pylist()) == msgspec.json.encode(lists)
    return array.type if is_same and not _is_hollow(array.type) else None


def text_tools_type() -> Any:
    """Of tools whose parameters are JSON text."""
    pa = pyarrow()
    function = pa.struct([("name", pa.string()), ("description", pa.string()), ("parameters", pa.string())])
    return pa.list_(pa.struct([("type", pa.string()), ("function", function)]))


def array_of(values: Sequence[Any], kind: Any) -> Any:
    """An array of a type; of Arrow's JSON type, and of lists of it, any JSON values."""
    pa = pyarrow()
    if isinstance(kind, pa.JsonType):
        return pa.array([None if value is None else _text(value) for value in values], pa.string()).cast(kind)
    if pa.types.is_list(kind) and isinstance(kind.value_type, pa.JsonType):
        texts = [None if value is None else [_text(item) for item in value] for value in values]
        return pa.array(texts, pa.list_(pa.string())).cast(kind)
    return pa.array(values, kind)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _is_hollow(kind: Any) -> bool:
    """Whether there is an object without keys or nothing but nulls, which Parquet does not give back."""
    pa = pyarrow()
    if pa.types.is_list(kind):
        return _is_hollow(kind.value_type)
    if pa.types.is_struct(kind):
        fields: Sequence[Any] = [kind.field(index) for index in range(kind.num_fields)]
        return not fields or any(_is_hollow(field.type) for field in fields)
    return bool(pa.types.is_null(kind))
