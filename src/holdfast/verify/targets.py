"""What a run has on servers: a database of its own for every database that the flow's sinks write to, and topics likewise.

A flow that is tested must not touch what it writes to in earnest. A run's databases and topics are made, copied and
dropped with its directory, beside the flow's own, so the flow's user there must be allowed to make them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import sqlalchemy as sa

from holdfast.clients.kafka import Cluster, NoTopic, Outage, Refusal
from holdfast.core.errors import FlowError
from holdfast.flow.endpoints import SinkDescription
from holdfast.flow.flow_plan import FlowPlan, SinkSpec
from holdfast.flow.kafka import KafkaSink
from holdfast.flow.table_sink import TableSink
from holdfast.sinks.kafka import access_of, copy_target
from holdfast.verify.home import Home


class Target(Protocol):
    """A place on a server that runs have for themselves, by name."""

    def moved(self, description: SinkDescription, name: str) -> SinkDescription: ...
    def make(self, name: str) -> None: ...
    def copy(self, name: str, new: str) -> None: ...
    def drop(self, name: str) -> None: ...
    def names(self, prefix: str) -> list[str]: ...


class Targets:
    """All that the runs of one campaign have on servers."""

    def __init__(self, plan: FlowPlan) -> None:
        self._prefix = f"holdfast_verify_{uuid.uuid4().hex[:8]}"
        # The sinks of one database share the run's.
        self._found: dict[object, Target] = {}
        self._of: dict[str, Target] = {}
        for sink in plan.sinks:
            made = _target(sink)
            if made is not None:
                key, make = made
                self._of[sink.name] = self._found.setdefault(key, make())

    def __bool__(self) -> bool:
        return bool(self._found)

    def moved(self, plan: FlowPlan, home: Home) -> FlowPlan:
        """The flow with its sinks in what the run has on servers."""
        return replace(plan, sinks=tuple(self._moved(sink, home) for sink in plan.sinks))

    def make(self, home: Home) -> None:
        """An empty place for each, for a new run."""
        for target in self._found.values():
            target.make(self._name(home))

    def copy(self, home: Home, new: Home) -> None:
        """The same for a run that goes on where another was."""
        for target in self._found.values():
            target.copy(self._name(home), self._name(new))

    def drop(self, home: Home) -> None:
        """Leave nothing of a run, if it left anything."""
        for target in self._found.values():
            target.drop(self._name(home))

    def end(self) -> None:
        """Leave nothing of any run, also of those that ended badly."""
        for target in self._found.values():
            for name in target.names(self._prefix):
                target.drop(name)

    def _moved(self, sink: SinkSpec, home: Home) -> SinkSpec:
        target = self._of.get(sink.name)
        if target is None:
            return sink
        return replace(sink, description=target.moved(sink.description, self._name(home)))

    def _name(self, home: Home) -> str:
        return f"{self._prefix}_{hashlib.blake2b(str(home.root).encode(), digest_size=6).hexdigest()}"


def _target(sink: SinkSpec) -> tuple[object, Callable[[], Target]] | None:
    """What a sink's own place is told from others by, and what makes places like it; None for one in files."""
    match sink.description:
        case TableSink(url=url) if on_server(url):
            return ("postgres", url), partial(_Database, url)
        case KafkaSink() as description:
            return ("kafka", description.servers, description.topic), partial(_Topic, description)
        case _:
            return None


def on_server(url: str) -> bool:
    """Whether a table's database is on a server, and not in a file."""
    return sa.make_url(url).get_backend_name() == "postgresql"


class _Database:
    """Databases of a PostgreSQL server."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url).set(drivername="postgresql+psycopg")

    def moved(self, description: SinkDescription, name: str) -> SinkDescription:
        assert isinstance(description, TableSink)
        there = sa.make_url(description.url).set(database=name)
        return replace(description, url=there.render_as_string(hide_password=False))

    def make(self, name: str) -> None:
        with self._server() as server:
            server.execute(sa.text(f'CREATE DATABASE "{name}"'))

    def copy(self, name: str, new: str) -> None:
        # A template must have no visitors; those of processes that died may not be gone yet.
        leave = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = :name"
        with self._server() as server:
            server.execute(sa.text(leave), {"name": name})
            server.execute(sa.text(f'CREATE DATABASE "{new}" TEMPLATE "{name}"'))

    def drop(self, name: str) -> None:
        with self._server() as server:
            server.execute(sa.text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))

    def names(self, prefix: str) -> list[str]:
        with self._server() as server:
            found = sa.text("SELECT datname FROM pg_database WHERE starts_with(datname, :prefix)")
            return list(server.execute(found, {"prefix": prefix}).scalars())

    @contextmanager
    def _server(self) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self._url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise FlowError(
                f"no database for a run can be made beside {self._url.render_as_string()}: {error.orig}",
                operation="verify",
                hint="verify gives every run a database of its own: the user of the URL needs the right CREATEDB.",
            ) from error


class _Topic:
    """Topics of a Kafka cluster."""

    def __init__(self, description: KafkaSink) -> None:
        self._description = description
        self._cluster = Cluster(access_of(description))

    def moved(self, description: SinkDescription, name: str) -> SinkDescription:
        assert isinstance(description, KafkaSink)
        return replace(description, topic=name)

    def make(self, name: str) -> None:
        """With as many partitions as the flow's own has, if that is there."""
        with self._asked() as cluster:
            try:
                _, partitions = cluster.patiently(lambda: cluster.described(self._description.topic))
            except NoTopic:
                partitions = [0]
            cluster.make_topic(name, len(partitions), {})

    def copy(self, name: str, new: str) -> None:
        """All messages, and the record."""
        self.make(new)
        with self._asked():
            copy_target(self._description, name, new)

    def drop(self, name: str) -> None:
        with self._asked() as cluster:
            cluster.patiently(lambda: cluster.drop_topic(name))

    def names(self, prefix: str) -> list[str]:
        with self._asked() as cluster:
            return [name for name in cluster.patiently(cluster.topics) if name.startswith(prefix)]

    @contextmanager
    def _asked(self) -> Iterator[Cluster]:
        try:
            yield self._cluster
        except (Outage, Refusal) as error:
            raise FlowError(
                f"topics of runs cannot be made, copied or dropped at {self._description.servers}: {error}",
                operation="verify",
                heals=isinstance(error, Outage),
                hint="verify gives every run topics of its own: the brokers must be there, and let the flow's user make and delete"
                " topics. With --restart, the command must wait until they answer again, at the same address.",
            ) from error
