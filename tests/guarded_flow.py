"""The flow under fire as `holdfast run` finds it: its home and its recovery policies come from the environment."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf
import ill_worker
from flow_under_fire import SCHEMA, build

# By name, the policy of every stage that has not the default one.
POLICIES = {
    "warm": {"unique": hf.no_sync(members=2)},
    "mixed": {
        "unique": hf.passive_standby(every=2),
        "totals": hf.active_standby(),
        "windows": hf.upstream_backup(),
        "few": hf.strong_production(),
    },
    "lockstep": {"totals": hf.active_standby(lockstep=True), "unique": hf.active_standby(lockstep=True)},
    "captured": dict.fromkeys(("unique", "totals", "windows", "few"), hf.snapshot("1 second")),
    "cold": {"windows": hf.upstream_backup(), "few": hf.upstream_backup()},
}


def counting(home: Path) -> hf.Flow:
    """A flow whose stages keep nothing for a failure."""
    made = hf.Flow("under-fire", guarantee="at_most_once", recover=hf.gap())
    rows = made.source("rows", hf.files(str(home / "in"), schema=SCHEMA, max_files_per_epoch=1))
    rows.group_by("k").agg(n=hf.count()).named("totals").to(hf.parquet(str(home / "totals")))
    return made


_home = Path(os.environ.get("STAND_HOME", "stand"))
_policies = os.environ.get("STAND_POLICIES", "warm")
flow = counting(_home) if _policies == "gap" else build(_home, POLICIES[_policies])
ill_worker.obey()
