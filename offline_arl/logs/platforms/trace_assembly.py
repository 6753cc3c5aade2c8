"""Traces of an observability platform as trajectories: what every such format does after its records are read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import Assembly, Group, RecordRefusedError
from offline_arl.logs.platforms.answer_shapes import read_answer
from offline_arl.logs.platforms.message_shapes import read_prompt
from offline_arl.logs.platforms.tool_results import ToolRuns
from offline_arl.logs.platforms.trace_operations import CallContent, Operation, OperationTree, TraceInfo
from offline_arl.logs.platforms.trace_prompts import read_calls
from offline_arl.logs.stitching.stitch import ModelCall, stitch
from offline_arl.trajectories.schema import Message, Producer, Score, Trajectory, Usage

NO_CALL = "holds no model call with a prompt and an answer"


@dataclass
class _Trace:
    """One trace while it is assembled."""

    info: TraceInfo
    tree: OperationTree
    tools: ToolRuns
    calls: list[CallContent] = field(default_factory=list)


def assemble_traces(
    operations: Sequence[Operation], infos: Mapping[str, TraceInfo], group: Group, assembly: Assembly
) -> Assembly:
    """Add the trajectories of a group's operations to an assembly, and what became of the pieces.

    Args:
        operations: Each once.
        infos: What is known of the traces, by id.
        group: The group, for ids and provenance.
        assembly: With the pieces that have a fate already.
    """
    traces = _traces(operations, infos)
    for trace in traces:
        trace.calls = read_calls(trace.tree, trace.tools, assembly.refused) or _outermost_call(trace)
    _set_apart_incomplete(traces, assembly)
    owners: list[tuple[_Trace, CallContent]] = [(trace, call) for trace in traces for call in trace.calls]
    stitched = stitch([_model_call(call, trace) for trace, call in owners], group)
    assembly.trajectories.extend(_finish(trajectory, traces) for trajectory in stitched.trajectories)
    lost = {**stitched.set_apart, **stitched.duplicates}
    used = {
        piece
        for index, (_, call) in enumerate(owners)
        if index not in lost
        for operation in call.operations
        for piece in operation.pieces
    }
    used |= {piece for trace in traces for piece in trace.tools.used}
    used |= _outermost_pieces(traces, used)
    for fates, reasons in ((assembly.duplicates, stitched.duplicates), (assembly.set_apart, stitched.set_apart)):
        for index, reason in reasons.items():
            _tell(fates, owners[index][1].operations, reason, used)
    for operation in operations:
        if operation.kind == "tool":
            _tell(
                assembly.set_apart, [operation], "a tool or function that answers no recorded call of the model", used
            )
        else:
            _tell(assembly.set_apart, [operation], "encloses or serves model calls, and is none", used)
    _forget(assembly.set_apart, {*assembly.refused, *assembly.duplicates})
    return assembly


def _traces(operations: Sequence[Operation], infos: Mapping[str, TraceInfo]) -> list[_Trace]:
    by_trace: dict[str, list[Operation]] = {}
    for operation in operations:
        by_trace.setdefault(operation.trace_id or "", []).append(operation)
    return [
        _Trace(infos.get(trace_id) or TraceInfo(trace_id), OperationTree(members), ToolRuns(members))
        for trace_id, members in by_trace.items()
    ]


def _outermost_pieces(traces: Iterable[_Trace], used: set[int]) -> set[int]:
    """Pieces of the outermost operations of traces with used calls: session, user, task and judgements are theirs."""
    return {
        piece
        for trace in traces
        if any(not used.isdisjoint(item.pieces) for call in trace.calls for item in call.operations)
        for operation in trace.tree.operations
        if operation.kind == "other" and trace.tree.get(operation.parent_id) is None and not operation.is_utility
        for piece in operation.pieces
    }


def _tell(fates: dict[int, str], operations: Iterable[Operation], reason: str, used: set[int]) -> None:
    for operation in operations:
        for piece in operation.pieces:
            if piece not in used:
                fates.setdefault(piece, reason)


def _forget(fates: dict[int, str], pieces: Iterable[int]) -> None:
    for piece in pieces:
        fates.pop(piece, None)


def _outermost_call(trace: _Trace) -> list[CallContent]:
    """A trace without a recorded model call, as the one call that its outermost operation is."""
    if any(operation.kind == "model" for operation in trace.tree.operations):
        return []
    for operation in trace.tree.operations:
        if operation.kind != "other" or trace.tree.get(operation.parent_id) is not None:
            continue
        try:
            prompt, answer = read_prompt(operation.input), read_answer(operation.output)
        except RecordRefusedError:
            continue
        if prompt is None or answer is None or "content_was_json" in answer.choices[0].metadata:
            continue
        return [CallContent(operation, prompt, answer)]
    return []


def _set_apart_incomplete(traces: Iterable[_Trace], assembly: Assembly) -> None:
    """Leave out calls that have no prompt, no answer, or a piece in common with what could not be read."""
    apart: dict[int, str] = {}
    used: set[int] = set()
    for trace in traces:
        complete = []
        for call in trace.calls:
            pieces = [piece for operation in call.operations for piece in operation.pieces]
            if not assembly.refused.keys().isdisjoint(pieces):
                continue
            if call.prompt is None:
                apart.update(dict.fromkeys(pieces, "a model call whose prompt is not recorded"))
            elif call.answer is None and call.operation.error is None:
                apart.update(dict.fromkeys(pieces, "a model call whose answer is not recorded"))
            else:
                complete.append(call)
                used.update(pieces)
        trace.calls = complete
    for piece in apart.keys() - used:
        assembly.set_apart.setdefault(piece, apart[piece])


def _model_call(call: CallContent, trace: _Trace) -> ModelCall:
    operation, prompt, answer = call.operation, call.prompt, call.answer
    # The answer names the version of the model that was asked for.
    model = (answer.model if answer is not None else None) or operation.model
    messages = list(prompt.messages) if prompt is not None else []
    choices: list[Message] = []
    metadata = dict(operation.metadata)
    if prompt is not None and prompt.settings:
        metadata["settings"] = prompt.settings
    tools = prompt.tools if prompt is not None else None
    stop_reason, is_cut = operation.stop_reason, False
    if answer is not None:
        messages.extend(_by_model(message, model, None) for message in answer.before)
        usage = _usage(call)
        choices = [
            _by_model(choice, model, usage if not index else None) for index, choice in enumerate(answer.choices)
        ]
        tools = tools or answer.tools
        stop_reason, is_cut = answer.stop_reason or stop_reason, answer.truncated
        if answer.rest:
            metadata["response"] = answer.rest
    if call.merged:
        metadata["recorded_in_pieces"] = [item.operation_id for item in call.operations]
    return ModelCall(
        messages=messages,
        choices=choices,
        pieces=tuple(sorted({piece for item in call.operations for piece in item.pieces})),
        call_id=call.operations[-1].operation_id,
        tools=operation.tools or tools,
        started_at=operation.started_at,
        ended_at=call.operations[-1].ended_at,
        model=model,
        parent_id=operation.parent_id,
        name=_agent(operation, trace.tree) or operation.name,
        session_id=operation.session_id or trace.info.session_id,
        user_id=operation.user_id or trace.info.user_id,
        trace_id=operation.trace_id,
        truncated=is_cut,
        stop_reason=stop_reason,
        error=operation.error,
        is_utility=_is_utility(operation, trace.tree),
        scores=[score for item in call.operations for score in item.scores],
        metadata=metadata,
    )


def _agent(operation: Operation, tree: OperationTree) -> str | None:
    """The name of the nearest agent around an operation."""
    return next((item.agent for item in (operation, *tree.ancestors(operation)) if item.agent), None)


def _is_utility(operation: Operation, tree: OperationTree) -> bool | None:
    """Whether an operation, or one around it, is known to serve something else than the agent's task."""
    return True if any(item.is_utility for item in (operation, *tree.ancestors(operation))) else operation.is_utility


def _usage(call: CallContent) -> Usage | None:
    """The usage of a call; of a turn in pieces it is not known which of the pieces' counts hold."""
    if call.merged:
        return None
    return call.operation.usage or (call.answer.usage if call.answer is not None else None)


def _by_model(message: Message, model: str | None, usage: Usage | None) -> Message:
    if message.role != "assistant":
        return message
    return msgspec.structs.replace(message, producer=Producer("model", model), usage=usage or message.usage)


def _finish(trajectory: Trajectory, traces: Sequence[_Trace]) -> Trajectory:
    """Add what the traces of a trajectory say: results of its last calls, judgements, task, session and user."""
    last_answer = {message.id: index for index, message in enumerate(trajectory.messages) if message.id is not None}
    found: list[tuple[_Trace, int]] = []
    for trace in traces:
        indices = [last_answer[item.operation_id] for call in trace.calls for item in call.operations
                   if item.operation_id in last_answer]  # fmt: skip
        if indices:
            found.append((trace, max(indices)))
    if not found:
        return trajectory
    found.sort(key=lambda item: item[1])
    messages = _with_tool_runs(trajectory.messages, found)
    scores = list(trajectory.scores)
    if trajectory.parent_trajectory_id is None:
        for trace, index in found:
            place = index if len(found) > 1 else None
            scores.extend(_placed(score, place) for score in _scores_of_trace(trace, messages))
    infos = [trace.info for trace, _ in found]
    first = infos[0]
    identifiers = {"trace": first.trace_id, **trajectory.identifiers, **_enclosing(found, last_answer.keys())}
    return msgspec.structs.replace(
        trajectory,
        messages=messages,
        scores=scores,
        identifiers=identifiers,
        session_id=trajectory.session_id or first.session_id,
        user_id=trajectory.user_id or first.user_id,
        task_id=trajectory.task_id or first.task_id,
        group_id=trajectory.group_id or first.group_id or first.task_id,
        metadata={**_merged_metadata(infos), **trajectory.metadata},
    )


def _enclosing(found: Sequence[tuple[_Trace, int]], message_ids: Collection[str]) -> dict[str, str]:
    """Ids of the operations that enclose all calls of a trajectory, the outermost first: judgements may be of them."""
    chains = [
        [outer.operation_id for outer in trace.tree.ancestors(call.operation)][::-1]
        for trace, _ in found
        for call in trace.calls
        if any(item.operation_id in message_ids for item in call.operations)
    ]
    common = [levels[0] for levels in zip(*chains, strict=False) if len(set(levels)) == 1]
    ids = [operation_id for operation_id in common if operation_id not in {trace.info.trace_id for trace, _ in found}]
    return {f"operation_{n}" if n > 1 else "operation": operation_id for n, operation_id in enumerate(ids, 1)}


def _merged_metadata(infos: Sequence[TraceInfo]) -> dict[str, Any]:
    known = [info.metadata for info in infos if info.metadata]
    if len(infos) == 1:
        return known[0] if known else {}
    return {"traces": [{"id": info.trace_id, **info.metadata} for info in infos]}


def _placed(score: Score, index: int | None) -> Score:
    return score if score.message_index is not None else msgspec.structs.replace(score, message_index=index)


def _scores_of_trace(trace: _Trace, messages: Sequence[Message]) -> list[Score]:
    """Judgements of the trace, and of its operations that are no model calls."""
    judged = {item.operation_id for call in trace.calls for item in call.operations}
    by_call = {message.tool_call_id: index for index, message in enumerate(messages) if message.role == "tool"}
    scores = list(trace.info.scores)
    for operation in trace.tree.operations:
        if operation.operation_id in judged:
            continue
        place = by_call.get(trace.tools.call_of(operation)) if operation.kind == "tool" else None
        for score in operation.scores:
            metadata = {**score.metadata, "operation": operation.operation_id}
            scores.append(msgspec.structs.replace(score, message_index=place, metadata=metadata))
    return scores


def _with_tool_runs(messages: Sequence[Message], found: Sequence[tuple[_Trace, int]]) -> list[Message]:
    """Tool messages with the id, time and error of the runs that gave them.

    The results of the last answer's calls, which no later prompt repeats, are added.
    """
    starts = {item.operation_id: item.started_at for trace, _ in found for item in trace.tree.operations}
    owners = [index for _, index in found]
    runs: dict[str, Message] = {}
    for index, message in enumerate(messages):
        tools = found[min(bisect_left(owners, index), len(found) - 1)][0].tools
        for call in message.tool_calls:
            result = tools.result(call, starts.get(message.id or "", message.timestamp))
            if result is not None and call.id is not None:
                runs[call.id] = result
    known = [_with_run(message, runs.get(message.tool_call_id or "")) for message in messages]
    last = known[-1]
    missing = last.tool_calls if last.role == "assistant" else ()
    return [*known, *(runs[call.id] for call in missing if call.id is not None and call.id in runs)]


def _with_run(message: Message, run: Message | None) -> Message:
    if message.role != "tool" or run is None:
        return message
    return msgspec.structs.replace(
        message,
        id=message.id or run.id,
        name=message.name or run.name,
        timestamp=run.timestamp or message.timestamp,
        error=message.error or run.error,
    )
