"""The tables of docs/GUARANTEES.md and docs/RECOVERY.md have every policy, each with the class that it promises."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.flow.policies import Policy
from holdfast.verify.variants import POLICIES

DOCS = Path(__file__).resolve().parents[3] / "docs"


def rows(page: str, heading: str) -> list[list[str]]:
    """The table below a heading, cell by cell, without its head."""
    section = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def promised(policy: Policy) -> str:
    return "rollback-divergent" if policy.repeats else "precise" if policy.precise else "gap"


def test_the_guarantees_have_what_verify_tries() -> None:
    table = {policy.strip("`"): said for policy, said, *_ in rows("GUARANTEES.md", "What verify found")}
    assert table == {name: promised(make()) for name, make in POLICIES.items()}


def test_the_recovery_page_has_every_policy_and_its_class() -> None:
    table = {re.findall(r"\w+", row[0])[0]: row[-1] for row in rows("RECOVERY.md", "The policies")}
    precise = {make().name: make() for name, make in POLICIES.items() if "_at_least_once" not in name}
    assert table.keys() == precise.keys()
    assert {name: said.partition(";")[0] for name, said in table.items()} == {
        name: promised(policy) for name, policy in precise.items()
    }
    chosen = {re.findall(r"\w+", row[0])[0] for row in rows("RECOVERY.md", "Which one")}
    assert chosen == precise.keys()
