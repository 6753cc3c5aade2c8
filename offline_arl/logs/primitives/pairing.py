"""Which call a tool result answers, where the log gives no ids."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from offline_arl.trajectories.schema import Message, ToolCall


def needs_pairing(message: Message) -> bool:
    """Whether a call or a tool result has no id."""
    if message.role == "tool":
        return message.tool_call_id is None
    return any(call.id is None for call in message.tool_calls)


def pair_by_order(messages: Sequence[Message]) -> list[Message]:
    """Give ids to calls that have none, and pair tool results that name no call with the open calls.

    A result goes to the first open call of its name, or, where it has no name or none fits, to the first open
    call; calls of the latest turn come before those that earlier turns left open. Made-up ids are
    `call_<message index>_<number>`.
    """
    paired = []
    open_calls: list[ToolCall] = []
    of_turn = 0  # how many calls the turn that is going on has made; they are the first of the open calls
    for index, message in enumerate(messages):
        if message.role != "assistant":
            of_turn = 0
        if message.tool_calls:
            calls = [
                call if call.id is not None else msgspec.structs.replace(call, id=f"call_{index}_{number}")
                for number, call in enumerate(message.tool_calls)
            ]
            open_calls[of_turn:of_turn] = calls
            of_turn += len(calls)
            message = msgspec.structs.replace(message, tool_calls=calls)
        elif message.role == "tool":
            answered = _answered_call(message, open_calls)
            if answered is not None:
                open_calls.remove(answered)
                if message.tool_call_id is None:
                    message = msgspec.structs.replace(message, tool_call_id=answered.id)
        paired.append(message)
    return paired


def _answered_call(message: Message, open_calls: list[ToolCall]) -> ToolCall | None:
    if message.tool_call_id is not None:
        return next((call for call in open_calls if call.id == message.tool_call_id), None)
    named = [call for call in open_calls if call.name == message.name]
    return next(iter(named or open_calls), None)
