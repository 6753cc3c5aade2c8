"""How a tau2-bench simulation was judged: the reward, what it is made of, every check, and a reviewer's findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_arl.logs.primitives.scores import finite_number, make_score
from offline_arl.logs.primitives.values import as_list, as_object, as_text
from offline_arl.trajectories.schema import Outcome, Score, ScorerKind

TERMINATED = frozenset({"user_stop", "agent_stop", "agent_error"})
TRUNCATED = frozenset({"max_steps", "timeout", "too_many_errors", "context_window_exceeded"})
# The harness or the simulated user failed; whatever reward stands there is not the agent's.
_FAULTS = frozenset({"infrastructure_error", "unexpected_error", "user_error"})

# Each list of checks: the key of its verdict, the key that says what was checked, and who judged.
_CHECKS: dict[str, tuple[str, str, ScorerKind]] = {
    "action_checks": ("action_match", "action", "environment"),
    "env_assertions": ("met", "env_assertion", "environment"),
    "communicate_checks": ("met", "info", "environment"),
    "nl_assertions": ("met", "nl_assertion", "model"),
}


def outcome_of(simulation: Mapping[str, Any]) -> Outcome:
    """The reward as outcome; a failure of the harness is no failure of the agent."""
    if as_text(simulation.get("termination_reason")) in _FAULTS:
        return Outcome("infrastructure_error")
    info = as_object(simulation.get("reward_info"))
    reward = finite_number(info.get("reward"))
    if reward is None:
        return Outcome()
    parts = {key: finite_number(value) for key, value in as_object(info.get("reward_breakdown")).items()}
    components = {key: value for key, value in parts.items() if value is not None}
    return Outcome("scored", reward == 1, reward, components, "tau2_bench")


def scores_of(simulation: Mapping[str, Any], turns: Mapping[int, int]) -> list[Score]:
    """Every check, and the errors that a reviewer found, each at the message of its turn."""
    info = as_object(simulation.get("reward_info"))
    found = []
    database = as_object(info.get("db_check"))
    if isinstance(database.get("db_match"), bool):
        found.append(_check("db_check", database["db_match"], "environment", None, {}))
    for name, (verdict, subject, kind) in _CHECKS.items():
        for value in as_list(info.get(name)):
            fields = as_object(value)
            if isinstance(fields.get(verdict), bool):
                extra = {subject: fields.get(subject)}
                found.append(_check(name, fields[verdict], kind, fields.get("justification"), extra))
    for error in as_list(as_object(simulation.get("review")).get("errors")):
        fields = as_object(error)
        turn = fields.get("turn_idx")
        found.append(
            make_score(
                "review_error",
                None,
                label=fields.get("severity") or fields.get("error_type"),
                scorer="review",
                kind="model",
                direction="lower_is_better",
                message_index=turns.get(turn) if isinstance(turn, int) else None,
                comment=as_text(fields.get("reasoning")),
                metadata=fields,
            )
        )
    return found


def _check(name: str, verdict: bool, kind: ScorerKind, comment: object, extra: dict[str, Any]) -> Score:
    return make_score(
        name,
        verdict,
        scorer="tau2_bench",
        kind=kind,
        direction="higher_is_better",
        comment=comment,
        metadata={key: value for key, value in extra.items() if value is not None},
    )
