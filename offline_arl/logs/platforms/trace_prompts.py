"""Completing prompts that a trace records in part.

What a platform records as the input of a model call is what some library passed on, and that is not always what the
model read. A prompt is completed from elsewhere in the trace where the trace leaves no doubt:

- The system prompt is recorded with the enclosing agent, or with the response.
- The prompt holds only what is new, because the provider keeps the conversation: it continues another call's answer.
- The prompt is unreadable: the conversation is built from the answer before it and the tools that ran in between.
- One turn was recorded call by call, or its calls stand apart in a later prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.answer_shapes import merged_turn, read_answer
from offline_arl.logs.platforms.message_shapes import Prompt, read_prompt, system_messages
from offline_arl.logs.platforms.tool_results import ToolRuns
from offline_arl.logs.platforms.trace_operations import CallContent, Operation, OperationTree
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.trajectories.schema import Message


def read_calls(tree: OperationTree, tools: ToolRuns, refused: dict[int, str]) -> list[CallContent]:
    """The model calls of a trace in order of time, each with its prompt in full.

    A call whose prompt or answer cannot be read is left out; its pieces go to `refused` with the reason.
    """
    wrappers = {outer.operation_id for inner in tree.operations if _is_call(inner) for outer in tree.ancestors(inner)}
    calls: list[CallContent] = []
    for operation in tree.operations:
        if operation.kind != "model" or operation.operation_id in wrappers:
            continue
        try:
            call = _read(operation)
            if call.prompt is not None:
                prompt = _with_history(_with_system(call, call.prompt, tree), operation, calls)
                call.prompt = replace(prompt, messages=_regrouped(prompt.messages, calls))
            elif _is_rest_of_turn(call, calls, tools):
                continue
        except RecordRefusedError as error:
            refused.update(dict.fromkeys(operation.pieces, str(error)))
            continue
        _identify_tool_calls(call)
        calls.append(call)
    return calls


def _is_call(operation: Operation) -> bool:
    return operation.kind == "model" and (operation.input is not None or operation.output is not None)


def _read(operation: Operation) -> CallContent:
    name = operation.operation_id
    prompt = read_prompt(operation.input, f"{name}.input")
    return CallContent(operation, prompt, read_answer(operation.output, f"{name}.output"))


def _has_system(messages: Sequence[Message]) -> bool:
    return any(message.role in ("system", "developer") for message in messages)


def _with_system(call: CallContent, prompt: Prompt, tree: OperationTree) -> Prompt:
    if _has_system(prompt.messages):
        return prompt
    found = call.answer.system if call.answer is not None else []
    if not found:
        found = system_messages(call.operation.system)
    for enclosing in tree.ancestors(call.operation):
        if found:
            break
        found = _system_of(enclosing, prompt.messages)
    return replace(prompt, messages=[*found, *prompt.messages])


def _system_of(enclosing: Operation, messages: Sequence[Message]) -> list[Message]:
    """The system prompt of an enclosing agent whose conversation begins as the call's does."""
    try:
        outer = read_prompt(enclosing.input)
    except RecordRefusedError:
        return []
    if outer is None:
        return []
    system = [message for message in outer.messages if message.role in ("system", "developer")]
    others = [(message.role, message.text) for message in outer.messages if message.role not in ("system", "developer")]
    if [(message.role, message.text) for message in messages[: len(others)]] != others:
        return []
    return system or system_messages(enclosing.system)


def _with_history(prompt: Prompt, operation: Operation, calls: Sequence[CallContent]) -> Prompt:
    """The prompt with the conversation before it, where it continues an answer without repeating it."""
    messages = [message for message in prompt.messages if message.role not in ("system", "developer")]
    made = {call.id for message in messages for call in message.tool_calls}
    first = messages[0] if messages else None
    answered = first.tool_call_id if first is not None and first.role == "tool" else None
    previous_id = operation.previous_response_id or prompt.settings.get("previous_response_id")
    if answered in made:
        answered = None
    for call in reversed(calls):
        for choice in call.answer.choices if call.answer is not None and call.prompt is not None else ():
            is_answered = answered is not None and any(item.id == answered for item in choice.tool_calls)
            if is_answered or (previous_id is not None and previous_id == _response_id(call)):
                history = _thread(call, choice)
                tools = prompt.tools if call.prompt is None else prompt.tools or call.prompt.tools
                return replace(prompt, messages=[*history, *messages], tools=tools)
    return prompt


def _response_id(call: CallContent) -> object:
    response_id = call.operation.response_id
    return response_id if response_id is not None or call.answer is None else call.answer.rest.get("id")


def _thread(call: CallContent, choice: Message) -> list[Message]:
    """The conversation up to an answer of a call."""
    before = call.prompt.messages if call.prompt is not None else []
    return [*before, *(call.answer.before if call.answer is not None else []), choice]


def _is_rest_of_turn(call: CallContent, calls: Sequence[CallContent], tools: ToolRuns) -> bool:
    """Set the prompt of a call that has none, from the call before it in the same operation.

    Returns:
        Whether it is no call of its own: nothing happened since that call, so both are pieces of one turn.
    """
    operation = call.operation
    previous = next((item for item in reversed(calls) if item.operation.parent_id == operation.parent_id), None)
    if previous is None or previous.prompt is None or previous.answer is None or call.answer is None:
        return False
    if len(previous.answer.choices) != 1 or len(call.answer.choices) != 1:
        return False
    turn = previous.answer.choices[0]
    since = previous.operation.started_at
    results = [tools.result(item, since, operation.started_at) for item in turn.tool_calls]
    found = [result for result in results if result is not None]
    if found:
        call.prompt = replace(previous.prompt, messages=[*_thread(previous, turn), *found])
        return False
    if operation.input is None:
        return False
    whole = merged_turn([turn, *call.answer.before, *call.answer.choices])
    previous.answer = replace(call.answer, choices=[whole], before=previous.answer.before)
    previous.merged.append(operation)
    return True


def _regrouped(messages: list[Message], calls: Sequence[CallContent]) -> list[Message]:
    """The messages with calls of one turn together, where a library tells them one by one, each with its result."""
    for call in calls:
        for turn in call.answer.choices if call.answer is not None else ():
            ids = {item.id for item in turn.tool_calls}
            if len(ids) > 1 and None not in ids:
                messages = _together(messages, turn, ids)
    return messages


def _together(messages: list[Message], turn: Message, ids: set[str | None]) -> list[Message]:
    def is_of_turn(message: Message) -> bool:
        if message.role == "tool":
            return message.tool_call_id in ids
        return bool(message.tool_calls) and {item.id for item in message.tool_calls} <= ids

    start = next((index for index, message in enumerate(messages) if is_of_turn(message)), len(messages))
    end = start
    while end < len(messages) and is_of_turn(messages[end]):
        end += 1
    block = messages[start:end]
    told = [item.id for message in block for item in message.tool_calls]
    if sum(message.role != "tool" for message in block) < 2 or sorted(map(str, told)) != sorted(map(str, ids)):
        return messages
    results = [message for message in block if message.role == "tool"]
    return [*messages[:start], turn, *results, *messages[end:]]


def _identify_tool_calls(call: CallContent) -> None:
    """Give ids to the calls of answers that have none, as later prompts do that repeat them."""
    if call.answer is None or not any(map(needs_pairing, call.answer.choices)):
        return
    before = [*(call.prompt.messages if call.prompt is not None else []), *call.answer.before]
    choices = [pair_by_order([*before, choice])[-1] for choice in call.answer.choices]
    call.answer = replace(call.answer, choices=choices)
