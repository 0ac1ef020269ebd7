"""A campaign as one page that needs nothing else: no scripts, no fonts, no pictures from anywhere.

Every text is escaped where it becomes part of the page (`_tag`), so that no name that a user chose, no row and no error
can do more than be read. The page forbids itself to load or run anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from holdfast.verify.classes import Recovery
from holdfast.verify.differences import difference_lines
from holdfast.verify.outcome import Campaign, RunOutcome
from holdfast.verify.values import counted, printable

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --line: #d5d9dd; --soft: #f3f5f6;
  --good: #d3efdc; --fair: #e2e8f8; --poor: #fbe9c6; --bad: #f8cfcc; --none: #e7e9eb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --paper: #15181b; --line: #363c42; --soft: #1e2226;
  --good: #1d4a2e; --fair: #28375e; --poor: #5a451a; --bad: #6a2523; --none: #2c3136; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; }
.run { display: block; border-radius: 3px; padding: 0 .3rem; margin: 1px 0; white-space: nowrap; }
.precise { background: var(--good); } .gap, .rollback-repeating { background: var(--fair); }
.rollback-convergent, .unknown, .no-verdict { background: var(--poor); }
.rollback-divergent { background: var(--bad); } .not-reached { background: var(--none); }
.violation { background: var(--bad); outline: 2px solid currentColor; font-weight: bold; }
"""


def write(campaign: Campaign, path: Path) -> None:
    """Write the file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(campaign), encoding="utf-8")


def page(campaign: Campaign) -> str:
    """The page."""
    title = f"holdfast verify {campaign.flow}"
    body = [
        _tag("h1", title),
        _tag("p", f"{campaign.summary()}."),
        _tag("p", f"Seed {campaign.seed}, {campaign.seconds:.1f} s."),
        *_gate(campaign),
        *_section("Policies", _policies(campaign)),
        *_section("Runs", _runs(campaign)),
        *_violations(campaign.violations),
        *_section("Coverage", *_coverage(campaign)),
        *_section("Timings", _timings(campaign)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"{_tag('title', title)}\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _gate(campaign: Campaign) -> list[str]:
    if not campaign.gate:
        return []
    return _section("Sensitivities", _wrap("ul", (_tag("li", words) for words in campaign.gate)))


def _policies(campaign: Campaign) -> str:
    heads = ["policy", *(recovery.value for recovery in Recovery)]
    heads += ["no verdict", "not reached", "violations", "fail-overs"]
    lines = [
        [
            _tag("th", row.policy),
            *(_number(row.counts[recovery]) for recovery in Recovery),
            *(_number(count) for count in (row.no_verdict, row.not_reached, row.violations, row.failovers)),
        ]
        for row in campaign.table()
    ]
    return _table(heads, lines)


def _runs(campaign: Campaign) -> str:
    """Policies to the right, points downwards, and in a cell the runs, coloured by what was seen."""
    policies = [row.policy for row in campaign.table()]
    tried = dict.fromkeys(outcome.point for outcome in campaign.outcomes)
    points = [*campaign.points, *(point for point in tried if point not in campaign.points)]
    lines = [
        [_tag("th", point or "no point"), *(_cell(campaign, policy, point) for policy in policies)]
        for point in points
    ]
    return _table(["point", *policies], lines)


def _cell(campaign: Campaign, policy: str, point: str | None) -> str:
    here = [run for run in campaign.outcomes if run.policy == policy and run.point == point]
    return _wrap("td", (_run(run) for run in here))


def _run(run: RunOutcome) -> str:
    kind = "violation" if run.is_violation else run.shown.replace(" ", "-")
    return _tag("span", f"{run.fault}: {run.shown}", f"run {kind}", f"{run.predicted.value} predicted")


def _violations(violations: Sequence[RunOutcome]) -> list[str]:
    if not violations:
        return []
    parts = []
    for run in violations:
        error = [run.error] if run.error is not None else []
        parts += [
            _tag("h3", f"{run.policy}, {run.title}"),
            _tag("p", f"{run.predicted.value} predicted, {run.shown} observed. This shows it again:"),
            _tag("pre", run.command),
            _tag("pre", "\n".join([*error, *difference_lines(run)])),
        ]
    return _section("Violations", *parts)


def _coverage(campaign: Campaign) -> list[str]:
    missed = campaign.unreached
    reached = len(campaign.points) - len(missed)
    words = f"{reached} of {counted(len(campaign.points), 'point')} reached."
    if missed:
        words += " Never reached, and so neither passed nor failed:"
    return [_tag("p", words), *([_wrap("ul", (_tag("li", point) for point in missed))] if missed else [])]


def _timings(campaign: Campaign) -> str:
    heads = ["policy", "fault", "point", "detect s", "restore s", "caught up s", "whole run s", "fail-overs"]
    lines = [
        [
            *(_tag("td", words) for words in (run.policy, run.fault, run.point or "")),
            *(
                _number(value)
                for value in (run.timing.detect_s, run.timing.restore_s, run.timing.caught_up_s)
            ),
            _number(run.seconds),
            _number(run.failovers),
        ]
        for run in campaign.reached
    ]
    return _table(heads, lines)


def _section(title: str, *parts: str) -> list[str]:
    return [_tag("h2", title), *parts]


def _table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = _wrap("tr", (_tag("th", title) for title in heads))
    return _wrap("div", [_wrap("table", [head, *(_wrap("tr", line) for line in lines)])], "wide")


def _number(value: float | None) -> str:
    words = "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
    return _tag("td", words, "number")


def _wrap(name: str, parts: Iterable[str], kind: str = "") -> str:
    """An element around parts of the page."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<{name}{attribute}>{''.join(parts)}</{name}>"


def _tag(name: str, words: str, kind: str = "", hint: str = "") -> str:
    """An element around a text of any origin."""
    attributes = "".join(
        f' {key}="{escape(value)}"' for key, value in (("class", kind), ("title", hint)) if value
    )
    return f"<{name}{attributes}>{escape(printable(words))}</{name}>"
