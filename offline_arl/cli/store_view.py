"""Drawing what `show` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offline_arl.cli.output import harmless, table

if TYPE_CHECKING:
    from rich.console import Console

_ROLE_STYLES = {"system": "magenta", "developer": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
_MAX_ROWS = 20  # of a list of counts, the most frequent
_MAX_CHARACTERS = 2_000  # of one message; the whole is under --json


def draw_overview(console: Console, view: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """The overview and the first trajectories."""
    counts = ("trajectories", "steps", "tasks", "successes", "invalid_actions", "duplicates", "quarantined")
    table(console, [str(view["store"]), ""], [[name.replace("_", " "), str(view[name])] for name in counts])
    types = [
        [
            row["task_type"],
            str(row["trajectories"]),
            str(row["scored"]),
            _share(row["success"]),
            _cell(row["mean_steps"]),
        ]
        for row in view["by_task_type"]
    ]
    table(console, ["task type", "trajectories", "with verdict", "success [95 %]", "mean steps"], types)
    for key, header in (
        ("by_format", ["format", "trajectories"]),
        ("tools", ["tools", "calls"]),
        ("quarantine_reasons", ["refused because", "records"]),
    ):
        counts_of = [[name, str(number)] for name, number in view[key].items()]
        table(console, header, counts_of[:_MAX_ROWS])
        if len(counts_of) > _MAX_ROWS:
            console.print(f"and {len(counts_of) - _MAX_ROWS} more; --json has them all")
    draw_rows(console, rows)


def draw_steps(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """The columns of the step table that fit a screen; `--json` has them all."""
    shown = ("trajectory_id", "step", "tool_names", "invalid_action", "problem", "characters", "reward")
    draw_rows(console, [{name: row[name] for name in shown} for row in rows])


def draw_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of a table, in the order of their keys."""
    if rows:
        table(console, list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])


def draw_trajectory(console: Console, trajectory: Mapping[str, Any]) -> None:
    """One trajectory, message by message, with the reward of each step."""
    from rich.text import Text

    head = {
        key: trajectory.get(key)
        for key in ("trajectory_id", "task_id", "task_type", "group_id", "agent", "model", "stop_reason")
    }
    table(console, ["trajectory", ""], [[key, str(value)] for key, value in head.items() if value is not None])
    rewards = trajectory["step_rewards"]
    step_of = {message: step for step, message in enumerate(trajectory["step_messages"])}
    for index, message in enumerate(trajectory["messages"]):
        role = message["role"]
        title = Text(f"[{index}] {role}", style=f"bold {_ROLE_STYLES[role]}")
        step = step_of.get(index)
        if step is not None:
            title.append(
                f"  step {step}" + ("" if rewards is None else f", reward {rewards[step] + 0.0:+.3f}"), style="dim"
            )
        console.print(title)
        for part in message.get("content") or ():
            shown = part.get("text") or part.get("uri") or ""
            console.print(Text(_shortened(shown), style="italic dim" if part["type"] == "reasoning" else ""))
        for call in message.get("tool_calls") or ():
            console.print(Text(f"→ {_shortened(call['name'])}({_shortened(call['arguments_raw'])})", style="bold"))
            if call.get("parse_error"):
                console.print(Text(f"  {_shortened(call['parse_error'])}", style="red"))
        if message.get("error"):
            console.print(
                Text(_shortened(f"{message['error']['type']}: {message['error'].get('text', '')}"), style="red")
            )
    console.print(Text(_ending(trajectory), style="bold"))


def _ending(trajectory: Mapping[str, Any]) -> str:
    outcome = trajectory.get("outcome") or {}
    status = outcome.get("status", "unscored")
    ended = "terminated" if trajectory.get("terminated") else "truncated" if trajectory.get("truncated") else "ended"
    verdict = {True: "success", False: "failure", None: "no verdict"}[outcome.get("success")]
    score = "" if outcome.get("score") is None else f", score {outcome['score']:g}"
    return f"{ended}; {status}: {verdict}{score}"


def _shortened(text: str) -> str:
    text, rest = harmless(text[:_MAX_CHARACTERS]), len(text) - _MAX_CHARACTERS
    return text if rest <= 0 else f"{text} … ({rest} more characters)"


def _share(metric: Mapping[str, Any]) -> str:
    if metric["estimate"] is None:
        return "-"
    return f"{metric['estimate']:.3f} [{metric['low']:.3f}, {metric['high']:.3f}]"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
