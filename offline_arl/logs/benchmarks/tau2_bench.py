"""Results of tau2-bench: one document with all simulations, or a header and one file a simulation.

A header that lists its simulations (`simulation_index`) is joined with their files, which hold neither the policy nor
the tools nor the model. The policy is the core of the agent's system prompt; the prompt around it is not logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from offline_arl.logs.adapter import (
    Assembly,
    Fragment,
    Group,
    RawRecord,
    RecordRefusedError,
    RecordSetApartError,
)
from offline_arl.logs.benchmarks.tau2_messages import convert_messages, messages_of_ticks
from offline_arl.logs.benchmarks.tau2_scores import TERMINATED, TRUNCATED, outcome_of, scores_of
from offline_arl.logs.primitives.pairing import pair_by_order
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_text
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.trajectories.schema import Context, Producer, Trajectory, text_message

_FOLDER = "simulations"
_TOLD = frozenset({"id", "task_id", "messages", "ticks", "start_time", "end_time", "termination_reason", "policy"})


class Tau2BenchAdapter:
    """Reads tau2-bench results."""

    name = "tau2_bench"
    title = "tau2-bench results"
    keeps = "reward and its components, every check, policy and tools, why it ended, calls of the simulated user"
    lacks = "the agent's system prompt around the policy; audio"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a run's results or header, or one simulation."""
        return isinstance(record, dict) and (_is_run(record) or _is_simulation(record))

    def fragments(self, record: RawRecord) -> Sequence[Fragment]:
        """One fragment for each simulation that the record holds or tells of."""
        values = decode_object(record.raw)
        path = PurePath(record.file)
        if _is_simulation(values):
            levels = 2 if path.parent.name == _FOLDER else 1
            return [Fragment(str(values.get("id")), _payload({"simulation": values}), levels)]
        if not _is_run(values):
            raise RecordRefusedError("expected a run with info and tasks, or a simulation")
        tasks = {str(task.get("id")): task for task in as_list(values.get("tasks")) if isinstance(task, dict)}
        info = values["info"]
        found = []
        for index, simulation in enumerate(as_list(values.get("simulations"))):
            if not isinstance(simulation, dict):
                raise RecordRefusedError(f"simulations[{index}]: expected an object")
            task = tasks.get(str(simulation.get("task_id")))
            payload = {"info": info, "task": task, "simulation": simulation, "where": f"simulations[{index}]."}
            found.append(Fragment(f"{path.name}#{simulation.get('id', index)}", _payload(payload), 1))
        for entry in as_list(values.get("simulation_index")) if not found else ():
            task = tasks.get(str(as_object(entry).get("task_id")))
            found.append(Fragment(str(as_object(entry).get("id")), _payload({"info": info, "task": task}), 1))
        if not found:
            raise RecordSetApartError("the header of a run whose simulations are in other files")
        return found

    def assemble(self, group: Group) -> Assembly:
        """The trajectory of one simulation, with what its run's header says."""
        assembly = Assembly()
        header: dict[str, Any] = {}
        simulations: list[tuple[int, dict[str, Any]]] = []
        for index, piece in enumerate(group.pieces):
            values = msgspec.json.decode(piece.payload)
            header.update({key: value for key, value in values.items() if key != "simulation"})
            if "simulation" in values:
                simulations.append((index, values["simulation"]))
        for number, (index, simulation) in enumerate(simulations):
            if number:
                assembly.duplicates[index] = "the simulation is logged twice"
                continue
            try:
                assembly.trajectories.append(_trajectory(simulation, header, group))
            except RecordRefusedError as error:
                assembly.refused[index] = f"{header.get('where', '')}{error}"
        if not simulations:
            assembly.set_apart = dict.fromkeys(range(len(group.pieces)), "the file of the simulation is not there")
        return assembly


def _is_run(record: dict[str, Any]) -> bool:
    info = record.get("info")
    return (
        isinstance(info, dict)
        and {"agent_info", "user_info", "environment_info"} <= info.keys()
        and isinstance(record.get("tasks"), list)
    )


def _is_simulation(record: dict[str, Any]) -> bool:
    return {"id", "task_id", "termination_reason", "start_time"} <= record.keys() and (
        isinstance(record.get("messages"), list) or isinstance(record.get("ticks"), list)
    )


def _payload(values: dict[str, Any]) -> bytes:
    return json_text(values).encode()


def _trajectory(simulation: dict[str, Any], header: dict[str, Any], group: Group) -> Trajectory:
    info = as_object(header.get("info"))
    environment = as_object(info.get("environment_info"))
    agent = as_object(info.get("agent_info"))
    model, domain = as_text(agent.get("llm")), as_text(environment.get("domain_name"))
    logged = simulation.get("messages")
    if isinstance(logged, list):
        conversation = convert_messages(logged, "messages", model)
    else:
        spoken = messages_of_ticks(as_list(simulation.get("ticks")), "ticks")
        conversation = convert_messages(spoken, "messages of ticks", model, is_voice=True)
    messages = pair_by_order(conversation.messages)
    turns = conversation.turns
    policy = as_text(simulation.get("policy")) or as_text(environment.get("policy"))
    if policy is not None and not any(message.role == "system" for message in messages):
        system = msgspec.structs.replace(text_message("system", policy), producer=Producer("script", "policy"))
        messages = [system, *messages]
        turns = {turn: index + 1 for turn, index in turns.items()}
    tools = _tools(environment.get("tool_defs"))
    reason = as_text(simulation.get("termination_reason"))
    task = str(simulation.get("task_id"))
    task_id = task if domain is None else f"{domain}/{task}"
    metadata = {key: value for key, value in simulation.items() if key not in _TOLD and value not in (None, [], {})}
    if conversation.unseen:
        metadata["unseen_by_agent"] = conversation.unseen
    if header.get("task") is not None:
        metadata["task"] = header["task"]
    if info:
        metadata["run"] = {key: value for key, value in info.items() if key != "environment_info"}
    return Trajectory(
        trajectory_id=group.trajectory_id(),
        messages=messages,
        source=group.source(),
        task_id=task_id,
        group_id=task_id,
        episode_id=as_text(simulation.get("id")),
        task_type=domain,
        agent=as_text(agent.get("implementation")),
        model=model,
        started_at=as_text(simulation.get("start_time")),
        ended_at=as_text(simulation.get("end_time")),
        contexts=[] if tools is None else [Context(start=0, tools=tools)],
        terminated=reason in TERMINATED,
        truncated=reason in TRUNCATED,
        stop_reason=reason,
        outcome=outcome_of(simulation),
        scores=scores_of(simulation, turns),
        metadata=metadata,
    )


def _tools(values: object) -> str | None:
    """The tools of the agent, from a map or a list of signatures or of OpenAI tools."""
    listed = list(values.values()) if isinstance(values, dict) else values
    if not isinstance(listed, list) or not listed:
        return None
    tools = []
    for value in listed:
        if isinstance(value, dict) and "function" not in value and "params" in value:
            value = {"name": value.get("name"), "description": value.get("doc"), "parameters": value["params"]}
        tools.append(value)
    return normalize_tools(json_text(tools).encode())
