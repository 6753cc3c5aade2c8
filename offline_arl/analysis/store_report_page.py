"""The report about a store as one HTML page, to be sent around and read anywhere."""

from __future__ import annotations

from html import escape

from offline_arl.analysis.charts import histogram
from offline_arl.analysis.pages import examples, page, table
from offline_arl.analysis.report_sections import sections
from offline_arl.analysis.report_tables import Section, number, occurrences, percent, visible
from offline_arl.analysis.report_tables import examples as example_lines
from offline_arl.analysis.store_report import Finding, StoreReport

_HISTOGRAM = "Steps of a trajectory"
_SHOW = "offline-arl show STORE --trajectory ID"


def render(report: StoreReport) -> str:
    """The page. It needs no network and no scripts; what comes from logs is escaped."""
    parts = sections(report)
    after_outcomes = [part.name for part in parts].index("endings") + 1
    ordered = [
        _summary(report),
        *(_section(part, report) for part in parts[:after_outcomes]),
        _findings(report),
        *(_section(part, report) for part in parts[after_outcomes:]),
    ]
    links = [
        ("summary", "Summary"),
        *((part.name, part.title) for part in parts[:after_outcomes]),
        ("findings", "Findings"),
        *((part.name, part.title) for part in parts[after_outcomes:]),
    ]
    menu = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in links)
    name = escape(visible(report.store))
    body = (
        f'<header>\n<h1>Trajectory store</h1>\n<p class="path"><code>{name}</code></p>\n{_tiles(report)}\n'
        f'<nav aria-label="Sections"><ul>{menu}</ul></nav>\n</header>\n<main>\n{"".join(ordered)}</main>\n'
        f"<footer><p>Made by <code>offline-arl check</code>. See one trajectory with "
        f"<code>{_SHOW}</code>.</p></footer>"
    )
    return page(f"Trajectory store {visible(report.store)}", body)


def _tiles(report: StoreReport) -> str:
    held, success = report.holdings, report.outcomes.success
    tiles = [
        (number(held.trajectories), "trajectories"),
        (number(held.steps), "steps"),
        (number(held.tool_calls), "tool calls"),
        (number(held.tasks), "tasks"),
        ("-" if success.estimate is None else percent(success).partition(" ")[0], f"success of {success.n:,} judged"),
        (number(report.refused.count), "records refused"),
    ]
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _summary(report: StoreReport) -> str:
    lines = "".join(
        f'<li><span class="severity {problem.severity}">{problem.severity}</span>'
        f"<span>{escape(visible(problem.text))}</span></li>"
        for problem in report.problems
    )
    told = f'<ul class="problems">{lines}</ul>' if lines else '<p class="good">Nothing is wrong.</p>'
    return f'<section id="summary">\n<h2>Summary</h2>\n{told}\n</section>\n'


def _section(part: Section, report: StoreReport) -> str:
    lead = f"<p>{escape(part.lead)}</p>" if part.lead else ""
    drawn_tables = "\n".join(filter(None, map(table, part.tables)))
    tables = f'<div class="tables">\n{drawn_tables}\n</div>' if drawn_tables else ""
    chart = ""
    if part.name == "lengths" and report.steps_histogram:
        drawn = histogram(report.steps_histogram, _HISTOGRAM)
        chart = f"<figure><figcaption>{_HISTOGRAM}</figcaption>{drawn}</figure>"
    if not any(item.rows for item in part.tables) and not lead:
        lead = '<p class="muted">None.</p>'
    return f'<section id="{part.name}">\n<h2>{escape(part.title)}</h2>\n{lead}\n{chart}{tables}\n</section>\n'


def _findings(report: StoreReport) -> str:
    found = [finding for finding in report.findings if finding.count]
    missing = [finding for finding in report.findings if not finding.count]
    cards = "".join(map(_finding, found)) or '<p class="good">Validation found nothing.</p>'
    absent = "".join(f"<li><code>{escape(item.code)}</code>: {escape(item.what)}</li>" for item in missing)
    closing = f"<h3>Looked for and not found</h3>\n<ul>{absent}</ul>" if absent else ""
    return f'<section id="findings">\n<h2>Findings</h2>\n{cards}\n{closing}\n</section>\n'


def _finding(finding: Finding) -> str:
    return (
        f'<article class="finding"><h3><code>{escape(finding.code)}</code> '
        f'<span class="{finding.severity}">{finding.severity}</span></h3>\n'
        f'<p><span class="count">{occurrences(finding)}</span>: {escape(finding.what)}.</p>\n'
        f"<p>{escape(finding.meaning)}</p>\n"
        f"{examples(example_lines(finding.examples))}</article>\n"
    )
