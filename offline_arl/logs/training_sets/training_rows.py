"""What the rows of training sets have in common: pairs of answers, verdicts, tools, pictures in place of markers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.logs.primitives.values import as_object, as_text, json_type
from offline_arl.trajectories.schema import (
    Branch,
    ContentPart,
    Context,
    FilePart,
    ImagePart,
    Message,
    Outcome,
    Score,
    TextPart,
    Trajectory,
)

_MARKER = re.compile(r"<(image|video|audio)>")
_MEDIA_COLUMNS = {"images": "image", "videos": "video", "audios": "audio"}


def contexts_of(tools: object) -> list[Context]:
    """The context of a row's tools: a list or its JSON text; an empty list says that there were none.

    Raises:
        RecordRefusedError: There is something, and it is no list of tools. Passing it over would train a model to
            call what it was never shown.
    """
    text = tools_text(tools)
    if text is not None:
        return [Context(0, text)]
    if tools == [] or (isinstance(tools, str) and tools.strip() == "[]"):
        return [Context(0, "[]")]
    if tools is None or tools == {} or (isinstance(tools, str) and tools.strip() in ("", "null", "{}")):
        return []
    raise RecordRefusedError(f"tools: expected a list of tools or its JSON text, got {json_type(tools)}")


def paired(messages: list[Message]) -> list[Message]:
    """Messages whose calls and results have ids, made up in order where the format has none."""
    return pair_by_order(messages) if any(map(needs_pairing, messages)) else messages


def conversation(
    record: RawRecord, format: str, messages: list[Message], rest: dict[str, Any], contexts: list[Context]
) -> Trajectory:
    """The trajectory of a row that holds one conversation; `rest` is what else the row has."""
    if not messages:
        raise RecordRefusedError("the conversation is empty")
    return Trajectory(
        trajectory_id=record.trajectory_id(),
        messages=paired(messages),
        source=record.source(format),
        contexts=contexts,
        metadata=rest,
    )


def labelled(trajectory: Trajectory, label: bool | None, scorer: str) -> Trajectory:
    """The trajectory with a verdict on its answer: desirable or not; as it was where there is none."""
    if label is None:
        return trajectory
    return msgspec.structs.replace(trajectory, outcome=Outcome("scored", success=label, scorer=scorer))


def preference_pair(
    record: RawRecord,
    format: str,
    prompt: list[Message],
    answers: tuple[list[Message], list[Message]],
    rest: dict[str, Any],
    contexts: list[Context],
) -> list[Trajectory]:
    """Two trajectories that were compared: the chosen answer to a prompt, then the rejected one as a branch of it.

    Raises:
        RecordRefusedError: One answer is empty.
        RecordSetApartError: The answers are the same, so that nothing is preferred.
    """
    chosen, rejected = answers
    if not chosen or not rejected:
        raise RecordRefusedError(f"the {'rejected' if chosen else 'chosen'} answer is empty")
    if chosen == rejected:
        raise RecordSetApartError("chosen and rejected are the same")
    group_id = record.trajectory_id()
    found = []
    for number, answer in enumerate(answers):
        found.append(
            Trajectory(
                trajectory_id=record.trajectory_id(number),
                messages=paired([*prompt, *answer]),
                source=record.source(format),
                group_id=group_id,
                branch=Branch(group_id, len(prompt)) if number and prompt else None,
                contexts=contexts,
                metadata=rest,
                scores=[
                    Score(
                        "preference",
                        value=1.0 - number,
                        direction="higher_is_better",
                        comparison_id=group_id,
                    )
                ],
            )
        )
    return found


def shared_prompt(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """How many messages two conversations start with in common, leaving at least one of each as the answer."""
    most = min(len(chosen), len(rejected)) - 1
    count = 0
    while count < most and chosen[count] == rejected[count]:
        count += 1
    return count


def take_media(rest: dict[str, Any]) -> dict[str, list[str]]:
    """Take the columns of pictures, films and sounds out of a row: URIs by kind, in order.

    A column that holds something else stays where it is.
    """
    found = {}
    for column, kind in _MEDIA_COLUMNS.items():
        values = rest.get(column)
        if not isinstance(values, list):
            continue
        uris = [uri for value in values if (uri := _uri(value)) is not None]
        if len(uris) == len(values):
            del rest[column]
            if uris:
                found[kind] = uris
    return found


def place_media(messages: list[Message], media: dict[str, list[str]], rest: dict[str, Any]) -> list[Message]:
    """Put pictures, films and sounds where markers (`<image>`) stand for them.

    Where the numbers of a kind differ, its markers stay text and the URIs go to `rest`.
    """
    counts: dict[str, int] = dict.fromkeys(media, 0)
    for message in messages:
        for kind in _MARKER.findall(message.text):
            counts[kind] = counts.get(kind, 0) + 1
    queues = {}
    for kind, uris in media.items():
        if counts[kind] == len(uris):
            queues[kind] = list(reversed(uris))
        else:
            rest[f"{kind}s"] = uris
    if not queues:
        return messages
    return [
        msgspec.structs.replace(message, content=_placed(message.content, queues)) if message.content else message
        for message in messages
    ]


def _placed(content: list[ContentPart], queues: dict[str, list[str]]) -> list[ContentPart]:
    parts: list[ContentPart] = []
    for part in content:
        if not isinstance(part, TextPart):
            parts.append(part)
            continue
        start = 0
        for marker in _MARKER.finditer(part.text):
            kind = marker[1]
            if kind not in queues:
                continue
            if marker.start() > start:
                parts.append(TextPart(part.text[start : marker.start()]))
            uri = queues[kind].pop()
            parts.append(ImagePart(uri) if kind == "image" else FilePart(uri, kind))
            start = marker.end()
        if start < len(part.text) or not part.text:
            parts.append(TextPart(part.text[start:]))
    return parts


def _uri(value: object) -> str | None:
    """A path or URL; of a table's `{"bytes", "path"}` the bytes, which containers give as a data URI."""
    if isinstance(value, str):
        return value
    fields = as_object(value)
    return as_text(fields.get("bytes")) or as_text(fields.get("path")) or as_text(fields.get("url"))
