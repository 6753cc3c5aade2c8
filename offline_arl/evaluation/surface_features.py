"""What can be counted in an attempt so far, without a language model: the baseline that hidden states have to beat."""

from __future__ import annotations

from collections import Counter

from offline_arl.trajectories.schema import Message, Trajectory


def surface_features(trajectory: Trajectory, step: int) -> dict[str, float]:
    """Lengths, counts of calls and errors of an attempt up to and including its action of number `step`.

    What the environment answers to that action is not in it. Tools are counted by name (`calls of NAME`), so that a
    tool that only some attempts use tells them apart.

    Args:
        trajectory: An attempt.
        step: Number of the step, from 0.

    Returns:
        Numbers by name. All attempts have the same names but for the tools.
    """
    messages = trajectory.messages[: trajectory.step_indices()[step] + 1]
    agent = [message for message in messages if message.role == "assistant"]
    users = [message.text for message in messages if message.role == "user"]
    results = [message for message in messages if message.role == "tool"]
    calls = [call for message in agent for call in message.tool_calls]
    repeats = Counter((call.name, call.arguments_raw) for call in calls)
    words = [len(message.text.split()) for message in agent]
    features = {
        "steps": float(step + 1),
        "messages": float(len(messages)),
        "user messages": float(len(users)),
        "agent words": float(sum(words)),
        "agent words a message": sum(words) / max(1, len(words)),
        "agent words last": float(words[-1]) if words else 0.0,
        "user words": float(sum(len(text.split()) for text in users)),
        "user words first": float(len(users[0].split())) if users else 0.0,
        "user words last": float(len(users[-1].split())) if users else 0.0,
        "result characters": float(sum(len(message.text) for message in results)),
        "calls": float(len(calls)),
        "different tools": float(len({call.name for call in calls})),
        "calls repeated": float(sum(count - 1 for count in repeats.values())),
        "argument characters": float(sum(len(call.arguments_raw) for call in calls)),
        "arguments not JSON": float(sum(call.parse_error is not None for call in calls)),
        "errors": float(sum(map(_is_error, results))),
        "last is a call": float(bool(agent and agent[-1].tool_calls)),
        "last result is an error": float(bool(results and _is_error(results[-1]))),
    }
    for name, count in Counter(call.name for call in calls).items():
        features[f"calls of {name}"] = float(count)
    return features


def _is_error(message: Message) -> bool:
    """A result that the log calls an error, or that begins like one: many logs have no other mark."""
    return message.error is not None or message.text.lstrip().lower().startswith(("error", '{"error'))
