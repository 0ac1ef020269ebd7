"""A supervised run from Kafka to PostgreSQL and back, each behind a password: none of them is left, said or shown anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer

import servers
from edges.tables import run
from planted import argument_lists, files_with, shown, workers

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
FLOW = """
import os

import holdfast as hf

broker = os.environ["SHOP_KAFKA"]
door = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": os.environ["SHOP_USER"],
    "sasl.password": os.environ["SHOP_PASSWORD"],
}
flow = hf.Flow("shop", recover=hf.no_sync(members=2))
rows = flow.source("rows", hf.kafka(broker, os.environ["SHOP_IN"], schema="k long, v long", options=door))
sums = rows.group_by("k").agg(s=hf.sum("v")).named("sums")
sums.to(hf.table(os.environ["SHOP_POSTGRES"], "sums", key="k"))
sums.to(hf.kafka_sink(broker, os.environ["SHOP_OUT"], options=door))
"""


def send(broker: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for n in numbers:
        producer.produce(topic, json.dumps({"k": n % 3, "v": n}))
    assert producer.flush(60) == 0


def without_password(door: dict[str, str], topic: str) -> str | None:
    """What the broker says to who knows the name only."""
    errors: list[str] = []
    settings = {**door, "sasl.password": "wrong", "group.id": uuid.uuid4().hex}
    consumer = Consumer({**settings, "error_cb": lambda error: errors.append(str(error))})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 30
    while not errors and time.monotonic() < deadline:
        consumer.poll(0.2)
    consumer.close()
    return next(iter(errors), None)


@pytest.mark.timeout(400)
def test_no_password_of_a_server_is_left_or_shown_anywhere(
    postgres: str, kafka: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    secured = servers.read("kafka", "secured")
    if not secured:
        servers.be_without("kafka", "a broker of one's own, without a door that asks for a password")
    login, _, broker = secured.rpartition("@")
    user, _, password = login.partition(":")
    incoming, outgoing = topic(), topic()
    door = {
        "bootstrap.servers": broker,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
    }
    assert "uthentication failed" in str(without_password(door, incoming)), "the door is open"
    key = f"x9planted{uuid.uuid4().hex}"
    secrets = [password, str(urlsplit(postgres).password), key]
    send(kafka, incoming, range(30))
    (tmp_path / "flow.py").write_text(FLOW)
    conf = tmp_path / "s3.conf"
    conf.touch(mode=0o600)
    conf.write_text(f"spark.hadoop.fs.s3a.secret.key {key}\n")
    shop = {"KAFKA": broker, "USER": user, "PASSWORD": password, "POSTGRES": postgres}
    told = {"IN": incoming, "OUT": outgoing, **shop}
    environment = {**os.environ, **{f"SHOP_{name}": value for name, value in told.items()}}

    def holdfast(*words: str) -> str:
        done = subprocess.run(
            [HOLDFAST, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    command = ["run", "flow.py", "--work-dir", "work", "--master", "local[2]", "--verbose"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [HOLDFAST, *command, "--conf-file", "s3.conf"],
            cwd=tmp_path,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    seen: dict[int, bytes] = {}

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            seen.update(listed := argument_lists(but=0))
            assert not shown(secrets, listed.values())
            time.sleep(0.05)

    def sums() -> list[tuple]:
        there = run(postgres, "select to_regclass('sums')") != [(None,)]
        return sorted(run(postgres, "select k, s from sums")) if there else []

    try:
        until(lambda: sums() == wanted(30))
        until(lambda: len(list(workers(tmp_path / "work"))) == 2)
        (_, worker), _ = workers(tmp_path / "work")
        os.kill(worker.pid, signal.SIGKILL)
        send(kafka, incoming, range(30, 60))
        until(lambda: sums() == wanted(60))
        asked = [
            holdfast(*words.split(), *rest)
            for words in ("explain flow.py", "status --work-dir work", "workers --work-dir work")
            for rest in ([], ["--json"])
        ]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (tmp_path / "said").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
            for _, left in workers(tmp_path / "work"):
                left.end()
    assert any(b"org.apache.spark.deploy.SparkSubmit" in words for words in seen.values())
    assert not shown(secrets, [text.encode() for text in asked])
    assert (tmp_path / "work" / "ledger.db").is_file()
    assert files_with(secrets, tmp_path, but=[conf]) == []


def wanted(numbers: int) -> list[tuple[int, int]]:
    return [(k, sum(range(k, numbers, 3))) for k in range(3)]
