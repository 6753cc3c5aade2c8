"""The diagnosis of online trainings as one HTML page: findings, and curves with the findings at their steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from offline_arl.analysis.curves import Curve, Mark, curves_chart
from offline_arl.analysis.pages import page
from offline_arl.analysis.report_tables import visible
from offline_arl.online.diagnosis.figures import figures, parts_of, undecided, validations
from offline_arl.online.diagnosis.findings import KINDS, Finding
from offline_arl.online.diagnosis.history import History


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong in one training."""

    name: str  # the folder, below the run that was asked about
    history: History
    findings: list[Finding]

    @property
    def healthy(self) -> bool | None:
        """Whether nothing was found; None where no step is finished, so that nothing can be told."""
        return not self.findings if self.history.records or self.findings else None

    @property
    def verdict(self) -> str:
        """What is to be said where there are no findings, with how much was looked at."""
        if self.healthy is None:
            return "no step is finished, so nothing can be told yet"
        needed = ", ".join(f"{kind} ({what})" for kind, what in undecided(self.history).items())
        return "nothing was found" + (f"; what needs more to be told for sure: {needed}" if needed else "")

    @property
    def title(self) -> str:
        """The name, how far the training is, and what it uses besides the policy."""
        done, setup, parts = len(self.history.records), self.history.setup, parts_of(self.history)
        steps = f"{done} step{'' if done == 1 else 's'}"
        if setup is not None and setup.steps != done:
            steps = f"{done} of {setup.steps} steps"
        return f"{self.name}: {steps}" + (f", with {', '.join(parts)}" if parts else "")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "steps": len(self.history.records),
            "planned_steps": None if self.history.setup is None else self.history.setup.steps,
            "with": parts_of(self.history),
            "healthy": self.healthy,
            "undecided": undecided(self.history),
            "now": figures(self.history),
            "validation": validations(self.history),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def render(run: str, diagnoses: Sequence[Diagnosis]) -> str:
    """The page. It needs no network and no scripts.

    Args:
        run: The path that was asked about.
        diagnoses: At least one.
    """
    menu = ""
    if len(diagnoses) > 1:
        items = "".join(
            f'<li><a href="#run-{place}">{escape(one.name)}</a></li>' for place, one in enumerate(diagnoses)
        )
        menu = f'<nav aria-label="Trainings"><ul>{items}</ul></nav>'
    sections = "".join(_section(place, diagnosis) for place, diagnosis in enumerate(diagnoses))
    body = (
        f'<header>\n<h1>Online training</h1>\n<p class="path"><code>{escape(visible(run))}</code></p>\n{menu}\n'
        "</header>\n"
        f"<main>\n{sections}</main>\n<footer><p>Made by <code>offline-arl diagnose</code>.</p></footer>"
    )
    return page(f"Diagnosis of {visible(run)}", body)


def _section(place: int, diagnosis: Diagnosis) -> str:
    found = {finding.kind for finding in diagnosis.findings}
    cards = "".join(_card(number, finding) for number, finding in enumerate(diagnosis.findings, start=1))
    absent = "".join(f"<li>{escape(text)}</li>" for kind, text in KINDS.items() if kind not in found)
    closing = f"<details><summary>Looked for and not found</summary><ul>{absent}</ul></details>" if absent else ""
    mark = "muted" if diagnosis.healthy is None else "good"
    told = cards or f'<p class="{mark}">{escape(_sentence(_capital(diagnosis.verdict)))}</p>'
    return (
        f'<section id="run-{place}">\n<h2>{escape(visible(diagnosis.title))}</h2>\n{_tiles(diagnosis)}\n'
        f"{told}\n{closing}\n{_charts(diagnosis)}\n</section>\n"
    )


def _card(number: int, finding: Finding) -> str:
    severity = "error" if finding.severity == "fatal" else "warning"
    return (
        f'<article class="finding"><h3>{number}. {escape(KINDS[finding.kind])} '
        f'<span class="{severity}">{finding.severity}, from step {finding.step}</span></h3>\n'
        f"<p>{escape(_sentence(finding.evidence))}</p>\n"
        f'<p class="muted">Threshold: {escape(_sentence(finding.threshold))}</p>\n'
        f"<p>Remedy: {escape(_sentence(finding.remedy))}</p></article>\n"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    return f"{visible(text)}."


def _tiles(diagnosis: Diagnosis) -> str:
    history = diagnosis.history
    tiles = [
        (f"{len(history.records):,}", "steps"),
        (f"{sum(record.n_episodes for record in history.records):,}", "episodes"),
        (f"{sum(record.environment_steps for record in history.records):,}", "environment steps"),
        (f"{len(diagnosis.findings)}", "findings"),
    ]
    if history.validations:
        start, best = history.validations[0], max(history.validations, key=lambda found: found.score)
        tiles += [
            (f"{start.greedy:.2f} / {start.sampled:.2f}", "success at the start, greedy / sampled"),
            (f"{best.greedy:.2f} / {best.sampled:.2f}", f"best, at step {best.step}"),
        ]
    explained = figures(history).get("explained_variance")
    if explained is not None:
        tiles.append((f"{explained:.2f}", "variance of returns explained by the critic"))
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _charts(diagnosis: Diagnosis) -> str:
    history = diagnosis.history
    marks = _marks(diagnosis.findings)
    validated = [
        Curve(f"{name} validation", [(found.step, getattr(found, name)) for found in history.validations], dots=True)
        for name in ("sampled", "greedy")
    ]
    sampled_entropy = [facts.get("entropy") for facts in history.facts]
    entropy = _curve(history, "entropy", "a token")
    if any(value is not None for value in sampled_entropy):
        values = [math.nan if value is None else value for value in sampled_entropy]
        entropy = Curve("a token", [(record.step, x) for record, x in zip(history.records, values, strict=True)])
    charts = [
        curves_chart("Success", [_curve(history, "success", "of the steps"), *validated], marks, share=True),
        curves_chart("KL to the warm start, nats", [_curve(history, "kl", "a token")], marks),
        curves_chart("Entropy, nats", [entropy], marks),
        curves_chart("Loss", [_curve(history, "loss", "loss")], marks),
        curves_chart("Gradient norm, before it is cut", [_curve(history, "gradient_norm", "norm")], marks),
        curves_chart("Tokens of an episode", [_curve(history, "mean_tokens", "sampled")], marks),
        curves_chart(
            "Steps and invalid actions of an episode",
            [_curve(history, "mean_steps", "steps"), _curve(history, "invalid_actions", "invalid actions")],
            marks,
        ),
        curves_chart(
            "Groups that teach nothing, episodes cut off",
            [_curve(history, "idle_groups", "idle groups"), _curve(history, "truncated", "truncated")],
            marks,
            share=True,
        ),
        curves_chart(
            "Sampler and trainer, nats a token",
            [_curve(history, "mismatch", "mismatch"), _curve(history, "ratio_drift", "drift before the last update")],
            marks,
        ),
        curves_chart("Loss on logged successes, nats", [_curve(history, "cloning_loss", "a token")], marks),
        curves_chart("Returns explained by the critic", [_curve(history, "explained_variance", "variance")], marks),
    ]
    return f'<div class="tables">{"".join(charts)}</div>'


def _marks(findings: Sequence[Finding]) -> list[Mark]:
    """One mark a step, with the numbers of its findings."""
    by_step: dict[int, list[tuple[int, Finding]]] = {}
    for number, finding in enumerate(findings, start=1):
        by_step.setdefault(finding.step, []).append((number, finding))
    return [
        Mark(
            step,
            ",".join(str(number) for number, _ in found),
            "; ".join(f"{finding.kind}: {visible(finding.evidence)}" for _, finding in found),
            is_error=any(finding.severity == "fatal" for _, finding in found),
        )
        for step, found in by_step.items()
    ]


def _curve(history: History, field: str, name: str) -> Curve:
    values = [(record.step, getattr(record, field)) for record in history.records]
    return Curve(name, [(step, math.nan if value is None else float(value)) for step, value in values])
