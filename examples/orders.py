"""What users spend a minute, and which pages they had visited just before they ordered.

Run it with `holdfast run examples/orders.py --work-dir demo-work/work --drain`; its results go to ORDERS_HOME
(./demo-work by default).
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import holdfast as hf

HOME = Path(os.environ.get("ORDERS_HOME", "demo-work"))
events = partial(hf.generate, rows=240_000, per_epoch=20_000, disorder="2 seconds")
ORDERS = events(
    "id string, user string, amount double, qty int, ts timestamp",
    keys={"user": 2_000},
    repeat=0.05,
    seed=7,
)
VISITS = events("user string, page string, ts timestamp", keys={"user": 2_000, "page": 12}, seed=8)

flow = hf.Flow("orders", guarantee="exactly_once")
orders = flow.source("orders", ORDERS)
visits = flow.source("visits", VISITS)

unique = orders.dedup("id", time="ts", within="1 minute").named("unique")
minutes = unique.group_by("user").window("ts", tumbling="1 minute", late="5 seconds")
minutes.agg(spent=hf.sum("amount * qty"), orders=hf.count()).named("minutes").to(
    hf.parquet(str(HOME / "minutes"))
)
led = unique.join(
    visits, on=["user"], time=("ts", "ts"), within=("-10 seconds", "0 seconds"), late="5 seconds"
)
led.named("led").group_by("page").agg(orders=hf.count(), spent=hf.sum("amount")).named("pages").to(
    hf.table(f"sqlite:///{HOME / 'pages.db'}", "pages", key=["page"])
)

if __name__ == "__main__":
    flow.run(HOME / "work", drain=True, master="local[*]")
