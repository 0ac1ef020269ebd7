"""From Kafka to PostgreSQL: whatever dies on the way, the tables equal the batch computation, nothing lost, nothing twice.

On servers of its own, because it restarts them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.core.errors import LedgerError
from holdfast.ledger.roster import roster
from servers import OwnServers

FLOW = Path(__file__).with_name("kafka_to_postgres.py")
HOLDFAST = Path(sys.executable).with_name("holdfast")
SEED = 20261116
PARTITIONS = 3
USERS = 5_000
REPEATED = 20  # every so many events are sent twice, as a producer does that got no reply
SECONDS_MAX = 1_500


def user_of(ids: np.ndarray) -> np.ndarray:
    return (ids * 7919) % USERS


def cents_of(ids: np.ndarray) -> np.ndarray:
    return ids % 10_007


@dataclass
class Shop:
    """The servers, the topic, and the flow between them."""

    servers: OwnServers
    work: Path
    topic: str
    rows_per_epoch: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def kafka(self) -> str:
        return self.servers.address("kafka")

    @property
    def postgres(self) -> str:
        return self.servers.address("postgres")

    def feed(self, first: int, events: int) -> None:
        """Send events; some of them twice."""
        producer = Producer(
            {"bootstrap.servers": self.kafka, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
        )
        ids = np.arange(first, first + events)
        for i, user, cents in zip(ids.tolist(), user_of(ids).tolist(), cents_of(ids).tolist(), strict=True):
            value = json.dumps({"id": i, "user": f"user-{user}", "cents": cents})
            for _ in range(2 if i % REPEATED == 0 else 1):
                producer.produce(self.topic, value, str(user), partition=i % PARTITIONS)
            producer.poll(0)
        assert producer.flush(120) == 0

    def start(self) -> None:
        environment = {
            "SHOP_KAFKA": self.kafka,
            "SHOP_TOPIC": self.topic,
            "SHOP_POSTGRES": self.postgres,
            "SHOP_ROWS_PER_EPOCH": str(self.rows_per_epoch),
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [HOLDFAST, "run", FLOW, "--work-dir", self.work, "--master", "local[2]", "--quiet"],
                env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def log(self) -> Path:
        return self.work.with_name("log")

    def counted(self) -> int:
        """How many events the totals have counted so far; 0 while the server or the table is not there."""
        try:
            with psycopg.connect(self.postgres, connect_timeout=5) as session:
                found = session.execute("SELECT coalesce(sum(n), 0) FROM totals").fetchone()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return 0
        return int(found[0]) if found else 0

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"not in time: {what}; counted {self.counted()}"
            time.sleep(0.2)

    def living(self) -> list[int]:
        try:
            groups = roster(self.work)["groups"].values()
        except LedgerError:
            return []
        return [int(w["process"]["pid"]) for group in groups for w in group["workers"] if w["lives"]]

    def kill_one(self, chance: random.Random) -> None:
        """kill -9 of a random worker."""
        self.wait("a living worker", lambda: bool(self.living()))
        os.kill(chance.choice(self.living()), signal.SIGKILL)

    def check(self, events: int) -> None:
        ids = np.arange(events)
        users, cents = user_of(ids), cents_of(ids)
        with psycopg.connect(self.postgres) as session:
            totals = session.execute('SELECT "user", n, cents FROM totals').fetchall()
            large = session.execute("SELECT id FROM large").fetchall()
        number, sums = np.bincount(users), np.bincount(users, weights=cents).astype(np.int64)
        wanted = {(f"user-{u}", int(number[u]), int(sums[u])) for u in np.unique(users)}
        assert len(totals) == len(wanted)
        assert set(totals) == wanted
        assert sorted(row[0] for row in large) == ids[cents % 10 == 0].tolist()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(300) == 0, self.log.read_text()

    def close(self) -> None:
        """End everything that is left."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def shop(own_servers: OwnServers, tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def open_shop(rows_per_epoch: int) -> Shop:
        shop = Shop(own_servers, tmp_path / "work", f"orders-{uuid.uuid4().hex}", rows_per_epoch)
        made.append(shop)
        admin = AdminClient({"bootstrap.servers": shop.kafka})
        wanted = NewTopic(shop.topic, num_partitions=PARTITIONS, replication_factor=1)
        admin.create_topics([wanted])[shop.topic].result(60)
        with psycopg.connect(shop.postgres, autocommit=True) as session:
            session.execute("DROP TABLE IF EXISTS totals, large, holdfast_sinks")
        return shop

    yield open_shop
    for one in made:
        one.close()


def play(shop: Shop, events: int, kills: int, restarts: tuple[str, ...]) -> None:
    """Feed a part before the start and the rest on the way, with a blow after each part."""
    chance = random.Random(SEED)
    part = events // (kills + len(restarts) + 1)
    blows: list[str] = ["kill"] * kills + list(restarts)
    chance.shuffle(blows)
    shop.feed(0, part)
    shop.start()
    for number, blow in enumerate(blows, 1):
        before, fed = shop.counted(), part * number
        rest = part if number < len(blows) else events - fed
        shop.feed(fed, rest)
        shop.wait(f"progress before blow {number}", lambda before=before: shop.counted() > before)
        if blow == "kill":
            shop.kill_one(chance)
        else:
            shop.servers.restart(blow)
    shop.wait("the end of the input", lambda: shop.counted() >= events)
    shop.stop()
    shop.check(events)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_flow_from_kafka_to_postgres_survives_kills_and_restarts(shop: Callable[..., Shop]) -> None:
    play(shop(4_000), 40_000, kills=1, restarts=("kafka", "postgres"))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_million_events_ten_kills_and_a_restart_of_each_server(shop: Callable[..., Shop]) -> None:
    play(shop(25_000), 1_000_000, kills=10, restarts=("kafka", "postgres"))
