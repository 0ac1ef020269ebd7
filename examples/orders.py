"""Running totals per user, and the number of users by how often they bought.

Run it with `holdfast run examples/orders.py --until-idle`; it reads ORDERS_HOME/in (./demo-work by default).
"""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

HOME = Path(os.environ.get("ORDERS_HOME", "demo-work"))
SCHEMA = "id string, user string, amount double, qty int, ts timestamp"

flow = hf.Flow("orders", guarantee="exactly_once")
orders = flow.source("orders", hf.files(str(HOME / "in"), schema=SCHEMA, max_files_per_epoch=1))
paid = orders.transform(lambda df: df.where("amount > 0"))
totals = (
    paid.group_by("user")
    .agg(total=hf.sum("amount * qty"), n=hf.count(), top=hf.max("amount"))
    .named("totals")
    .to(hf.parquet(str(HOME / "totals")))
)
totals.group_by("n").agg(users=hf.count(), largest=hf.max("total")).named("by_count").to(
    hf.parquet(str(HOME / "by_count"))
)

if __name__ == "__main__":
    flow.run(HOME / "work", until_idle=True, master="local[*]")
