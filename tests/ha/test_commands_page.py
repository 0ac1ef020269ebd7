"""The commands that docs/COMMANDS.md begins with, beside a flow that runs with a standby and is captured."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from command import holdfast
from guard import Guard
from pages import blocks
from stand import Stand

PAGE = Path(__file__).resolve().parents[2] / "docs" / "COMMANDS.md"
FLOW = """
import holdfast as hf

flow = hf.Flow("orders", recover=hf.snapshot(every="1 second", members=2))
orders = flow.source("orders", hf.generate(rows=1_000_000, per_epoch=500, rate=500, keys={"user": 20}))
orders.group_by("user").agg(n=hf.count()).named("totals").to(hf.parquet("out/"))
"""
# A part of what each says; of the others it is enough that they end well.
SAYS = {
    "explain": "totals",
    "workers": "standby",
    "failover": "is fenced off",
    "epochs": "totals",
    "snapshot": "(monday) is complete after",
    "substreams": "0 open, 0 closed",
    "reset": "runs the flow: stop it first",
}


def snapshots(stand: Stand) -> int:
    """How many are complete; the first, of nothing, too."""
    return int(stand.read("select count(*) from snapshots where status in ('committed', 'done')")[0][0])


@pytest.mark.timeout(400)
def test_the_commands_of_the_page_are_answered_while_the_flow_runs(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = (shlex.split(line, comments=True) for line in blocks(PAGE, "sh")[0].splitlines())
    _, run, file, *options = first
    assert run == "run"
    (stand.home / file).write_text(FLOW)
    monkeypatch.chdir(stand.home)
    monkeypatch.setenv("HOLDFAST_WORK_DIR", "work")
    guard = Guard(stand, "", *options, flow=Path(file))
    try:
        guard.wait_for_head(0)
        guard.wait_for_standby()
        guard.wait("a snapshot that has an epoch", lambda: snapshots(stand) > 1)
        for _, command, *words in others:
            said = holdfast(command, *words)
            assert said.status == 0, (command, said)
            assert SAYS.get(command, "") in said.out
        status, told = guard.stop()
        assert status == 0, told
    finally:
        guard.close()
