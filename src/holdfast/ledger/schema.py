"""The ledger's tables. docs/ON_DISK.md describes them; a change here is a new FORMAT_VERSION.

Invariants that the tables themselves keep: one plan an epoch, one manifest an epoch and revision, one
cursor a consumer and input, one ordinal a source item. All else is kept by the transactions that write
them, whose first statement is the fence.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, MetaData, String, Table
from sqlalchemy import Integer as SqlInteger

FORMAT_VERSION = 4

metadata = MetaData()

# SQLite's integers have 64 bits; PostgreSQL's must be asked for them. Milliseconds and bytes need them.
Integer = SqlInteger().with_variant(BigInteger(), "postgresql")

# One row: whose ledger this is, and which process decides who runs what in it.
flow = Table(
    "flow",
    metadata,
    Column("name", String, primary_key=True),
    Column("format_version", Integer, nullable=False),
    Column("generation", Integer, nullable=False),  # the newest that was given to anyone
    Column("supervisor", Integer, nullable=False),  # the generation of the process that decides
    Column("holder", JSON),  # that process; None after a clean stop
    Column("plan", JSON),  # what a supervisor runs: the flow's stages, groups and settings
)

# Stages that run in one process, and who may commit for them. A generation belongs to one group.
groups = Table(
    "groups",
    metadata,
    Column("group", String, primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("stages", JSON, nullable=False),
    Column("primary", String),  # the worker that drives the group; None while there is none
    Column("members", JSON, nullable=False),  # workers that may commit: the primary and hot standbys
    Column("asked", String),  # the primary that somebody wants to see replaced
)

# Processes that a supervisor has started for a group and not yet forgotten.
workers = Table(
    "workers",
    metadata,
    Column("worker", String, primary_key=True),
    Column("group", String, nullable=False),
    Column("status", String, nullable=False),  # as protocols/supervision.py has it
    Column("holder", JSON),
    Column("rehearsals", Integer, nullable=False),  # epochs run for practice while it stands by
    Column("failure", JSON),  # why it failed
    Column("started_ms", Integer, nullable=False),
)

# Every process that was started for a worker, until it is known to have ended with all that it started: a stop ends them,
# also those that were struck off. A ledger of this format may lack the table, which then is made when a flow takes it.
processes = Table(
    "processes",
    metadata,
    Column("worker", String, primary_key=True),
    Column("holder", JSON, nullable=False),
)

stages = Table(
    "stages",
    metadata,
    Column("stage", String, primary_key=True),
    Column("branch", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("head", Integer, nullable=False),  # the last committed epoch, -1 before the first
    Column(
        "plan_version", Integer, nullable=False
    ),  # raised whenever a plan is written or replaced, or positions are passed over
    Column("state_schema", JSON),  # key, operator and types of the stored state; None without state
    Column(
        "orphaned", Integer, nullable=False, server_default="0"
    ),  # 1 from a failure until the recovery from it
)

# How the state of a stage reads to a person: names, types, and how values are made of what is stored. Written when
# a stage registers; a ledger of this format may lack the table, which then is made when a flow takes it.
state_views = Table(
    "state_views",
    metadata,
    Column("stage", String, primary_key=True),
    Column("body", JSON, nullable=False),
)

# What a stage or a sink was when it last ran: where its rows come from and what it computes of them, or its target. A
# ledger of this format may lack the table, which then is made when a flow takes it.
definitions = Table(
    "definitions",
    metadata,
    Column("name", String, primary_key=True),  # stage:NAME or sink:NAME
    Column("body", JSON, nullable=False),
    Column("code", JSON, nullable=False),  # of a stage, by what its code is called, digests of it
)

# The ordinal log of a source: what it discovered, in order.
source_items = Table(
    "source_items",
    metadata,
    Column("source", String, primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("identity", String, nullable=False),
    Column("rows", Integer),
    Column("bytes", Integer, nullable=False),
    Column("body", JSON, nullable=False),
    Index("source_items_identity", "source", "identity", unique=True),
)

plans = Table(
    "plans",
    metadata,
    Column("stage", String, primary_key=True),
    Column("branch", Integer, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("body", JSON, nullable=False),
)

# An attempt's id is here before any of its tasks writes; its files are all below data/<stage>/<attempt>/.
attempts = Table(
    "attempts",
    metadata,
    Column("attempt", String, primary_key=True),
    Column("stage", String, nullable=False),
    Column("kind", String, nullable=False),  # epoch, merge or repair
    Column("epoch", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("status", String, nullable=False),  # open, committed or closed
    Index("attempts_status", "status"),
)

manifests = Table(
    "manifests",
    metadata,
    Column("stage", String, primary_key=True),
    Column("branch", Integer, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("attempt", String, nullable=False),
    Column("committed_ms", Integer, nullable=False),
    Column("body", JSON, nullable=False),
)

# Layers and segments are live, lost (named, but the file is not there) or condemned (may be unlinked).
layers = Table(
    "layers",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("stage", String, nullable=False),
    Column("branch", Integer, nullable=False),
    Column("first", Integer, nullable=False),
    Column("last", Integer, nullable=False),
    Column("attempt", String, nullable=False),
    Column("status", String, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("runs", JSON, nullable=False),
    Index("layers_stage", "stage", "branch", "first"),
)

segments = Table(
    "segments",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("stage", String, nullable=False),
    Column("branch", Integer, nullable=False),
    Column("port", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("attempt", String, nullable=False),
    Column("status", String, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("files", JSON, nullable=False),
    Index("segments_stage", "stage", "branch", "port", "epoch"),
)

# `processed` is the next position a consumer will read; below `needed` nothing can be asked for again.
cursors = Table(
    "cursors",
    metadata,
    Column("consumer", String, primary_key=True),
    Column("input", String, primary_key=True),
    Column("processed", Integer, nullable=False),
    Column("needed", Integer, nullable=False),
)

# By sink whose target does not start with the first epoch of its stage: with which it does.
sink_starts = Table(
    "sink_starts",
    metadata,
    Column("sink", String, primary_key=True),
    Column("epoch", Integer, nullable=False),
)

# Parts of a flow in which labels of substreams travel: what tracks them, and who reads labelled rows from whom. A
# ledger of this format may lack this table and the next two, which then are made when a flow takes it.
substream_scopes = Table(
    "substream_scopes",
    metadata,
    Column("scope", String, primary_key=True),
    Column("tracker", String, nullable=False),  # xor or punctuation
    Column("graph", JSON, nullable=False),  # by node, those that it reads
)

# What a tracker knows, in shards by label. `waiting` is told from the body, so that planning need not read that.
substream_shards = Table(
    "substream_shards",
    metadata,
    Column("scope", String, primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("body", JSON, nullable=False),
    Column("waiting", JSON, nullable=False),
)

# Substreams by label: the open ones, and the newest of those that have ended.
substreams = Table(
    "substreams",
    metadata,
    Column("scope", String, primary_key=True),
    Column("label", String, primary_key=True),
    Column("since_ms", Integer, nullable=False),
    Column("ended_ms", Integer),
)

# By sink that prepares and commits, the last epoch that was decided to be committed.
decisions = Table(
    "decisions",
    metadata,
    Column("sink", String, primary_key=True),
    Column("branch", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("token", String, nullable=False),
)

# Files that a standby, or another reader that is no member of the group, reads just now.
pins = Table(
    "pins",
    metadata,
    Column("reader", String, nullable=False),
    Column("kind", String, nullable=False),  # layer or segment
    Column("id", Integer, nullable=False),
    Column("until_ms", Integer, nullable=False),
    Index("pins_reader", "reader"),
)

# How far every member of a group has computed a stage whose members keep in step.
replicas = Table(
    "replicas",
    metadata,
    Column("stage", String, primary_key=True),
    Column("worker", String, primary_key=True),
    Column("epoch", Integer, nullable=False),
)

tiers = Table(
    "tiers",
    metadata,
    Column("stage", String, primary_key=True),
    Column("tier", String, primary_key=True),
    Column("safe", Integer, nullable=False),
)

# Stages that snapshots capture as one. What leaves them leaves when a complete snapshot covers it.
regions = Table(
    "regions",
    metadata,
    Column("stage", String, primary_key=True),
)

# Snapshots of the region, by number; `protocols/snapshots.py` has the statuses.
snapshots = Table(
    "snapshots",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("status", String, nullable=False),
    Column("mode", String, nullable=False),
    Column("asked", Integer, nullable=False),  # 1 if a person wanted it: it then stays until it is deleted
    Column("name", String),  # that the person gave it
    Column("to_blame", Integer, nullable=False),  # 1 if it was aborted because it failed
    Column("reason", String),  # why it was aborted
    Column("begun_ms", Integer),
    Column("committed_ms", Integer),
    Column("ended_ms", Integer),
)

# What a stage adds to a snapshot: the last epoch in it, and from where it would read on.
snapshot_parts = Table(
    "snapshot_parts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("stage", String, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("positions", JSON, nullable=False),
    Column("taken_ms", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),  # of the files that it added, known when it is complete
)

# Branches that began at an epoch of another: they share what lies up to there.
branches = Table(
    "branches",
    metadata,
    Column("stage", String, primary_key=True),
    Column("branch", Integer, primary_key=True),
    Column("parent", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),  # the last that both share
    Column("begun_ms", Integer, nullable=False),
    Column("reason", String, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("at_ms", Integer, nullable=False),
    Column("kind", String, nullable=False),
    Column("stage", String),
    Column("epoch", Integer),
    Column("generation", Integer),
    Column("reason", String, nullable=False),
)
