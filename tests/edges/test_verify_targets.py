"""`holdfast verify` on real servers: from Kafka to PostgreSQL, Kafka (read with read_committed) and Delta, with restarts.

On servers of its own, because it restarts them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from planted import files_with
from servers import OwnServers

HOLDFAST = Path(sys.executable).with_name("holdfast")
POINTS = ("sink.before_stage", "sink.after_stage", "sink.after_publish", "sink.after_record")

FLOW = """
import holdfast as hf

flow = hf.Flow("shop")
events = flow.source(
    "events", hf.kafka({kafka!r}, "events", schema="id long, user string, amount long", max_rows_per_epoch=200)
)
totals = events.group_by("user").agg(n=hf.count(), total=hf.sum("amount")).named("totals")
totals.to(hf.table({postgres!r}, "totals", key="user"))
totals.to(hf.kafka_sink({kafka!r}, "totals", key="user"))
totals.to(hf.delta("totals"))
events.transform(lambda df: df.where("amount % 3 = 0")).named("some").to(hf.table({postgres!r}, "some"))
"""


def feed(kafka: str, events: int) -> None:
    """Send events to a topic with three partitions."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic("events", num_partitions=3, replication_factor=1)])["events"].result(60)
    producer = Producer({"bootstrap.servers": kafka})
    for i in range(events):
        producer.produce("events", json.dumps({"id": i, "user": f"user-{i * 7919 % 30}", "amount": i % 97}))
    assert producer.flush(60) == 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "faults", ["kill,target", pytest.param("kill,zombie,target", marks=pytest.mark.slow)]
)
def test_a_flow_into_servers_is_precise_also_when_they_are_restarted(
    own_servers: OwnServers, tmp_path: Path, faults: str
) -> None:
    """With the options that docs/VERIFY.md shows for targets that restart, at the points of a sink."""
    postgres, kafka = (own_servers.address(name) for name in ("postgres", "kafka"))
    feed(kafka, 1_200)
    flow = tmp_path / "shop.py"
    flow.write_text(FLOW.format(postgres=postgres, kafka=kafka))
    done = subprocess.run(
        [HOLDFAST, "verify", flow, "--faults", faults, "--points", ",".join(POINTS),
         "--restart", own_servers.restart_command("postgres", "kafka"),
         "--json", tmp_path / "report.json", "--html", tmp_path / "report.html",
         "--junit", tmp_path / "report.xml", "--epochs", "4"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    password = str(urlsplit(postgres).password)
    assert password not in done.stdout + done.stderr
    assert files_with([password], tmp_path, but=[flow]) == []
    report = json.loads((tmp_path / "report.json").read_text())
    ran = [run for run in report["outcomes"] if run["reached"]]
    assert {run["observed"] for run in ran} == {"precise"}
    assert {(run["fault"], run["point"]) for run in ran} >= {("target", point) for point in POINTS[1:3]}
    assert {run["point"] for run in ran if run["fault"] == "kill"} == set(POINTS)
    for run in ran:
        assert len(run["verdicts"]) == 4, "a sink was not read back"
    with psycopg.connect(postgres) as session:
        left = session.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'holdfast_verify%'"
        ).fetchall()
    assert left == []
    topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=30).topics
    assert not [name for name in topics if name.startswith("holdfast_verify")]
