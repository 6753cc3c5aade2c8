"""Bounds by configuration: the block `safety` of a stage, and a family whose environments keep to it.

    safety:
      allowed_tools: [get_order, update_address, refund_order]
      writes: [update_address, refund_order]
      max_calls: 8
      max_cost: 2
      costs: {refund_order: 1}
      max_seconds: 120
      forbidden:
        - {name: refunds of Z99, tools: [refund_order], arguments: {order_id: Z99}}
        - {name: scripts, pattern: "<script"}
      audit: audit.jsonl

What each means stands at `safety.SafetyPolicy`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from offline_arl.environments.approvals import Approver, Standing, WithTimeout, console
from offline_arl.environments.audit import AuditTrail
from offline_arl.environments.protocol import Environment, EnvironmentFamily, Task, closing, tool_names
from offline_arl.environments.safety import Forbidden, Guarded, SafetyPolicy
from offline_arl.errors import UsageError, alternatives
from offline_arl.trajectories.schema import ToolCall

_TASKS_ASKED = 50  # for their tools, until all that the bounds name were seen


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ForbiddenConfig(_Part):
    """Calls that must not be made: all that is set holds for such a call.

    `tools`: it calls one of them. `arguments`: it has at least these. `pattern`: a regular expression that is found in
    its arguments, as they were written or as JSON means them.
    """

    name: str = Field(min_length=1)
    tools: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}
    pattern: str | None = None

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"is no regular expression ({error})") from error
        return pattern

    @model_validator(mode="after")
    def _check(self) -> ForbiddenConfig:
        if not self.tools and not self.arguments and self.pattern is None:
            raise ValueError("forbids everything; name tools, arguments or a pattern")
        return self

    def matches(self, call: ToolCall) -> bool:
        """Whether a call is one of these."""
        if self.tools and call.name not in self.tools:
            return False
        arguments = call.arguments or {}
        if any(name not in arguments or arguments[name] != value for name, value in self.arguments.items()):
            return False
        if self.pattern is None:
            return True
        # Escapes are undone: "\u003cscript" is what it means.
        meant = "" if call.arguments is None else msgspec.json.encode(call.arguments).decode()
        return any(re.search(self.pattern, text) is not None for text in (call.arguments_raw, meant))


class SafetyConfig(_Part):
    """The block `safety`; what is not here is as in `safety.SafetyPolicy`.

    `approval`: who answers for the tools of `needs_approval`: "deny" and "grant" are standing answers, "console" asks
    on the terminal and waits `approval_seconds`, after which the answer is no. `audit`: name of the audit trail's file
    in the stage's folder; null: none.
    """

    allowed_tools: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    max_calls: int | None = Field(None, ge=0)
    max_cost: float | None = Field(None, ge=0)
    costs: dict[str, float] = {}
    max_seconds: float | None = Field(None, gt=0)
    forbidden: tuple[ForbiddenConfig, ...] = ()
    forbidden_reward: float = -10.0
    refused_reward: float = -0.05
    needs_approval: tuple[str, ...] = ()
    approval: Literal["deny", "grant", "console"] = "deny"
    approval_seconds: float = Field(300.0, gt=0)
    rollback: Literal["write", "episode"] = "episode"
    audit: str | None = Field("audit.jsonl", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")

    @field_validator("costs")
    @classmethod
    def _check_costs(cls, costs: dict[str, float]) -> dict[str, float]:
        for name, cost in costs.items():
            if cost < 0:
                raise ValueError(f"the cost of {name!r} is negative")
        return costs

    @property
    def tools(self) -> dict[str, tuple[str, ...]]:
        """The tools that each key names."""
        forbidden = tuple(name for item in self.forbidden for name in item.tools)
        named = {
            "allowed_tools": self.allowed_tools or (),
            "writes": self.writes or (),
            "costs": tuple(self.costs),
            "forbidden": forbidden,
            "needs_approval": self.needs_approval,
        }
        return {key: names for key, names in named.items() if names}

    @property
    def policy(self) -> SafetyPolicy:
        """The bounds."""
        return SafetyPolicy(
            allowed_tools=None if self.allowed_tools is None else frozenset(self.allowed_tools),
            writes=None if self.writes is None else frozenset(self.writes),
            max_calls=self.max_calls,
            max_cost=self.max_cost,
            costs=self.costs,
            max_seconds=self.max_seconds,
            forbidden=[Forbidden(item.name, item.matches) for item in self.forbidden],
            forbidden_reward=self.forbidden_reward,
            refused_reward=self.refused_reward,
            needs_approval=frozenset(self.needs_approval),
            rollback=self.rollback,
        )

    @property
    def approver(self) -> Approver:
        """Who answers."""
        if self.approval == "console":
            return WithTimeout(console(), seconds=self.approval_seconds)
        return Standing(granted=self.approval == "grant")


class GuardedFamily:
    """A family whose environments keep to bounds; everything else is the family's own.

    Args:
        family: The environments.
        config: The bounds.
        audit: Where everything is written; None: nowhere.

    Raises:
        UsageError: An environment's writes could not be undone.
    """

    def __init__(self, family: EnvironmentFamily, config: SafetyConfig, audit: AuditTrail | None = None) -> None:
        self._family = family
        self._unmet = {name: key for key, names in config.tools.items() for name in names}  # no task had it yet
        self._policy, self._approver, self._audit = config.policy, config.approver, audit
        self.make()  # says at once what cannot be kept

    @property
    def name(self) -> str:
        """Of the family."""
        return self._family.name

    def make(self) -> Environment:
        """A fresh environment within the bounds."""
        return Guarded(self._family.make(), self._policy, audit=self._audit, approver=self._approver)

    def tasks(self, split: str, count: int, *, seed: int) -> list[Task]:
        """Those of the family.

        Raises:
            UsageError: The bounds name a tool that none of the tasks has: what was meant is not kept to.
        """
        tasks = self._family.tasks(split, count, seed=seed)
        self._require_known_tools(tasks)
        return tasks

    def _require_known_tools(self, tasks: Sequence[Task]) -> None:
        known: dict[str, None] = {}
        for task in tasks[:_TASKS_ASKED]:
            if not self._unmet:
                return
            with closing(self._family.make()) as environment:
                known.update(dict.fromkeys(tool_names(environment.reset(task))))
            for name in known:
                self._unmet.pop(name, None)
        for name, key in self._unmet.items():
            raise UsageError(f"safety.{key}: no task has a tool {name!r}; {alternatives(name, list(known))}")

    def __getattr__(self, name: str) -> Any:
        # What else the family has (target returns, examples), so that it stays what it is to those who ask.
        return getattr(self._family, name)
