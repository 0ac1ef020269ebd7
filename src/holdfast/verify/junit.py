"""A campaign as JUnit XML, as CI servers show it: a test case a run.

A violation is a failure, a point that was not reached is skipped, not passed. A flow that is not deterministic fails a
case of its own, because none of its runs could be judged.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from holdfast.verify.differences import difference_lines
from holdfast.verify.outcome import Campaign, RunOutcome
from holdfast.verify.values import printable


def write(campaign: Campaign, path: Path) -> None:
    """Write the file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = ElementTree(suite(campaign))
    indent(tree)
    tree.write(path, encoding="utf-8", xml_declaration=True)


def suite(campaign: Campaign) -> Element:
    """The campaign as a test suite."""
    name = f"holdfast verify {campaign.flow}"
    made = _element(None, "testsuite", name=name, time=f"{campaign.seconds:.3f}")
    _note_properties(made, campaign)
    if not campaign.deterministic:
        case = _element(made, "testcase", classname=campaign.flow, name="determinism gate")
        _element(case, "failure", "\n".join(campaign.gate), message=campaign.summary())
    for outcome in campaign.outcomes:
        _add_case(made, campaign, outcome)
    for total, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        made.set(total, str(sum(1 for _ in made.iter(tag))))
    made.set("errors", "0")
    _element(made, "system-out", campaign.summary())
    return made


def _note_properties(made: Element, campaign: Campaign) -> None:
    properties = _element(made, "properties")
    _element(properties, "property", name="seed", value=str(campaign.seed))
    _element(properties, "property", name="points not reached", value=", ".join(campaign.unreached))


def _add_case(made: Element, campaign: Campaign, outcome: RunOutcome) -> None:
    case = _element(
        made,
        "testcase",
        classname=f"{campaign.flow}.{outcome.policy}",
        name=outcome.title,
        time=f"{outcome.seconds:.3f}",
    )
    if not outcome.reached:
        _element(case, "skipped", message="the point was not reached")
    elif outcome.is_violation:
        message = f"{outcome.predicted.value} predicted, {outcome.shown} observed"
        _element(case, "failure", "\n".join(_details(outcome)), message=message)


def _details(outcome: RunOutcome) -> list[str]:
    error = [outcome.error] if outcome.error is not None else []
    return [*error, *difference_lines(outcome), f"again: {outcome.command}"]


def _element(parent: Element | None, tag: str, text: str | None = None, **attributes: str) -> Element:
    safe = {name: printable(value) for name, value in attributes.items()}
    made = Element(tag, safe) if parent is None else SubElement(parent, tag, safe)
    made.text = printable(text) if text is not None else None
    return made
