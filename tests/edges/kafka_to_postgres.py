"""The flow from Kafka to PostgreSQL as `holdfast run` finds it; where the servers are comes from the environment."""

from __future__ import annotations

import os

import holdfast as hf

flow = hf.Flow("shop")
orders = flow.source(
    "orders",
    hf.kafka(
        os.environ.get("SHOP_KAFKA", "localhost:9092"),
        os.environ.get("SHOP_TOPIC", "orders"),
        schema="id long, user string, cents long",
        max_rows_per_epoch=int(os.environ.get("SHOP_ROWS_PER_EPOCH", "1000")),
    ),
    ids="id",
)
postgres = os.environ.get("SHOP_POSTGRES", "postgresql://localhost/shop")
totals = orders.group_by("user").agg(n=hf.count(), cents=hf.sum("cents")).named("totals")
totals.to(hf.table(postgres, "totals", key="user"))
large = orders.transform(lambda df: df.where("cents % 10 = 0")).named("large")
large.to(hf.table(postgres, "large"))
