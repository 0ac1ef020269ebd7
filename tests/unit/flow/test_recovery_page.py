"""The flows of docs/RECOVERY.md can be planned as written, and the error that it shows is the one that comes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast as hf
from command import holdfast
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "RECOVERY.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def planned(code: str) -> FlowPlan:
    names: dict[str, object] = {}
    exec(code, names)
    (flow,) = (value for value in names.values() if isinstance(value, hf.Flow))
    return plan(flow)


def test_the_flows_of_the_page_are_planned_as_it_says() -> None:
    shop, ledger, clicks = (planned(code) for code in BLOCKS[:3])
    assert {stage.name: stage.policy.name for stage in shop.stages} == {
        "unique": "strong_production",
        "totals": "passive_standby",
        "hourly": "upstream_backup",
    }
    assert ledger.replica == "/mnt/backup/ledger"
    assert {"replica" in stage.policy.tiers for stage in ledger.stages} == {True}
    assert [(group.name, group.stages) for group in clicks.groups] == [
        ("cleaning", ("unique",)),
        ("counting", ("pages", "minutes")),
    ]


def test_the_error_of_the_page_is_what_the_command_says(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```text\n(PlanError.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "refused_flow.py"
    path.write_text(BLOCKS[3])
    assert len(BLOCKS) == 4
    assert holdfast("explain", path).err == shown


@pytest.mark.parametrize(
    "make",
    [
        hf.gap,
        hf.upstream_backup,
        hf.passive_standby,
        hf.active_standby,
        hf.strong_production,
        hf.no_sync,
        hf.snapshot,
    ],
)
def test_every_policy_is_in_the_table_with_its_choices(make) -> None:
    names = make.__code__.co_varnames[: make.__code__.co_argcount]
    defaults = dict(zip(names, make.__defaults__ or (), strict=True))
    written = ", ".join(f"{name}={value!r}" for name, value in defaults.items()).replace("'", '"')
    assert f"| `{make.__name__}({written})` |" in PAGE
