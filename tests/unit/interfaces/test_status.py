"""What has happened is shown with its time, and merges do not push it out of sight."""

from __future__ import annotations

from pathlib import Path

from command import holdfast
from holdfast.ledger.groups import FAILOVER
from holdfast.ledger.ledger import record_event
from written_state import WrittenState


def test_merges_do_not_push_a_fail_over_or_a_repair_out_of_sight(tmp_path: Path) -> None:
    written = WrittenState(tmp_path)
    with written.ledger.write(written.generation) as tx:
        record_event(tx, FAILOVER, "main: b goes on; a is gone", generation=2)
        record_event(tx, "repaired", "a file was made again", stage="means", epoch=3)
        for epoch in range(40):
            record_event(tx, "merged", f"epochs 0 to {epoch}", stage="means", epoch=epoch)
    said = holdfast("status", "--work-dir", tmp_path)
    lines = said.out.splitlines()
    (repaired,) = (line for line in lines if "repaired" in line)
    assert repaired.endswith("Z repaired: means: a file was made again")
    assert repaired[:2] == "20"
    assert sum("failover: main: b goes on; a is gone" in line for line in lines) == 1
    assert [line.partition(" ")[2] for line in lines if "merged" in line] == [
        "merged: 40 times, this was the last"
    ]
    found = holdfast("status", "--work-dir", tmp_path, "--json").json
    kinds = [event["kind"] for event in found["events"]]
    assert kinds.count("merged") == 10
    assert {"repaired", FAILOVER} <= set(kinds)
    assert [event["seq"] for event in found["events"]] == sorted(event["seq"] for event in found["events"])
    assert found["routine"]["merged"]["count"] == 40
