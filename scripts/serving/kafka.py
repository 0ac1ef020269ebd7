"""A Kafka broker that is its own controller (KRaft): loopback only, jars from Maven, data kept over restarts.

It has two doors: one for everybody, and one that asks for a password (`secured`, beside `address`).
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import socket
import struct
import uuid
from pathlib import Path

from serving import maven, place
from serving.place import Unavailable
from serving.service import Service

HERE = place.CHECKOUT / "scripts" / "kafka"
POM = HERE / "pom.xml"
FORMAT_S_MAX = 120
ANSWER_S_MAX = 5
# Compiled lightly and collected serially, it starts sooner and leaves the second core to the tests.
JVM = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]
ACCOUNT = "holdfast"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SESSION_MS = 3000  # of 9000: a broker that was killed is not let in again before its old session is over
INTERNAL_PARTITIONS = 5  # of 50: it is these that a first group or transaction waits for

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=BROKER://127.0.0.1:{port},SECURED://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=BROKER://127.0.0.1:{port},SECURED://127.0.0.1:{secured}
listener.security.protocol.map=BROKER:PLAINTEXT,SECURED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.secured.sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config={login} required user_{account}="{password}";
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs={data}
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=500
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions={internal}
offsets.topic.replication.factor=1
transaction.state.log.num.partitions={internal}
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions={internal}
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class Kafka(Service):
    name = "kafka"
    variable = "HOLDFAST_TEST_KAFKA"
    ready_s_max = 120
    polite_end = signal.SIGTERM

    def prepare(self, port: int) -> list[str]:
        jars = maven.fetch(POM, self.name)
        java = [find_java(), *JVM, f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"]
        java += ["-cp", f"{jars}/*"]
        properties = self.home / "server.properties"
        place.write(properties, self.properties(port))
        if place.read(self.home / "made") is None:
            self.make_data(java, properties)
        return [*java, "kafka.Kafka", str(properties)]

    def properties(self, port: int) -> str:
        controller, secured = (place.port(self.home / f"{name}-port") for name in ("controller", "secured"))
        place.write(self.home / "secured", f"{ACCOUNT}:{self.password}@127.0.0.1:{secured}")
        return PROPERTIES.format(
            port=port, secured=secured, controller=controller, data=self.home / "data",
            login=LOGIN, account=ACCOUNT, password=self.password,
            session_ms=SESSION_MS, internal=INTERNAL_PARTITIONS,
        )  # fmt: skip

    @property
    def password(self) -> str:
        """Of the door that asks for one; chosen once."""
        file = self.home / "password"
        if place.read(file) is None:
            place.write(file, secrets.token_hex(16))
        return place.read(file) or ""

    def make_data(self, java: list[str], properties: Path) -> None:
        """Format the data directory. `made` is written last: without it, this begins anew."""
        shutil.rmtree(self.home / "data", ignore_errors=True)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        place.run(
            *java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config", properties,
            what="formatting", time_s_max=FORMAT_S_MAX,
        )  # fmt: skip
        place.write(self.home / "made", "yes")

    def address(self, port: int) -> str:
        return f"127.0.0.1:{port}"

    def answers(self, port: int) -> bool:
        """Whether the broker names itself among the live ones: it listens before it takes requests."""
        try:
            return live_brokers(port) > 0
        except (OSError, struct.error):
            return False


def live_brokers(port: int) -> int:
    """Ask for metadata (API 3, version 1) of no topics, and count the brokers in the answer."""
    client = b"services"
    request = struct.pack(">hhih", 3, 1, 1, len(client)) + client + struct.pack(">i", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb").read(12)
    _size, _correlation, brokers = struct.unpack(">iii", answer)
    return int(brokers)


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if not java:
        raise Unavailable("no java: run scripts/setup")
    return java
