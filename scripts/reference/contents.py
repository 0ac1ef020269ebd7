"""What the reference has, in its order: sections by what a user does, and in each the names as a user writes them.

A public name that no section has is an error, so a new one is placed here by whoever exports it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace

import holdfast
import holdfast.edges
import holdfast.testing
from holdfast.core import version
from holdfast.flow.feedback import FeedbackStream
from holdfast.flow.flow import Stream
from holdfast.flow.grouped import GroupedStream
from holdfast.ledger.lag import Lag
from holdfast.runtime.progress import Report, StageProgress
from holdfast.verify import plugin

MODULES = {"hf": holdfast, "holdfast.edges": holdfast.edges, "holdfast.testing": holdfast.testing}

# By the word that a user has for one of them. Their methods are entries, not members of an entry.
CLASSES = {"flow": holdfast.Flow, "stream": Stream, "grouped": GroupedStream, "feedback": FeedbackStream}

# What is not imported by name, but given to a user.
GIVEN = SimpleNamespace(
    Report=Report,
    StageProgress=StageProgress,
    Lag=Lag,
    holdfast_verify=plugin.holdfast_verify,
    Verified=plugin.Verified,
)

# A value has no docstring, but the module that sets it has; and the example of a fixture is in its module's.
DESCRIBED_BY = {"hf.__version__": (version,), "holdfast_verify": (plugin, plugin.holdfast_verify)}


@dataclass(frozen=True)
class Section:
    """Entries that belong together, each with the page that tells more of it, if that is not the section's."""

    title: str
    says: str
    entries: dict[str, str | None]


def thing(name: str) -> object:
    """What a name of an entry stands for."""
    owner, _, attribute = name.rpartition(".")
    return getattr({**MODULES, **CLASSES, "": GIVEN}[owner], attribute)


def aliases(name: str) -> list[str]:
    """Other names of the same method, such as `stream.filter` for `stream.where`."""
    owner, _, attribute = name.rpartition(".")
    if owner not in CLASSES:
        return []
    cls = CLASSES[owner]
    same = [other for other in dir(cls) if getattr(cls, other) is getattr(cls, attribute)]
    return [f"{owner}.{other}" for other in same if other != attribute]


def public() -> list[str]:
    """All names that the reference must have: what the modules export, and the methods of the classes."""
    exported = [f"{module}.{name}" for module in MODULES for name in MODULES[module].__all__]
    return exported + [
        f"{word}.{name}"
        for word, cls in CLASSES.items()
        for name, _ in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and not (cls is FeedbackStream and hasattr(Stream, name))
    ]


def entries() -> list[str]:
    """The names that the reference has."""
    return [name for section in SECTIONS for name in section.entries]


def unplaced() -> list[str]:
    """Public names that no section has."""
    placed = {other for name in entries() for other in (name, *aliases(name))}
    return [name for name in public() if name not in placed]


SECTIONS = (
    Section(
        "The flow",
        "A file makes one flow, gives it sources, and says what becomes of their rows. Nothing runs before `flow.run`\n"
        "or `holdfast run FLOW`. [A first flow](tutorial/01-a-first-flow.md) is the tutorial.",
        {
            "hf.Flow": "GUARANTEES.md",
            "flow.source": "SOURCES.md#the-same-row-twice",
            "flow.place": "RECOVERY.md#which-stages-share-a-process",
            "hf.__version__": None,
        },
    ),
    Section(
        "Sources",
        "Where rows come from: each of these describes a source for `flow.source`.\n"
        "[EDGES](EDGES.md#sources) has what each promises.",
        {
            "hf.files": "SOURCES.md#files",
            "hf.kafka": "KAFKA.md#reading-a-topic",
            "hf.delta_source": "LAKE.md#delta-tables-as-sources",
            "hf.read_stream": "STREAMS.md",
            "hf.generate": "SOURCES.md#generated-events",
            "hf.rows": "SOURCES.md#rows-in-memory",
            "hf.own_source": "EDGES.md#your-own",
        },
    ),
    Section(
        "Steps",
        "A `stream` is what `flow.source` gives, and so is what each of these gives: rows on their way. These look at one row at a\n"
        "time; expressions and conditions are Spark SQL, as text. [AGGREGATES](AGGREGATES.md#everyday-steps) tells more.",
        {
            "stream.where": None,
            "stream.select": None,
            "stream.with_column": None,
            "stream.with_columns": None,
            "stream.drop": None,
            "stream.rename": None,
            "stream.enrich": "ENRICH.md",
            "stream.union": "EVENT_TIME.md#chains-and-unions",
            "stream.transform": "AGGREGATES.md#transforms-treat-rows-one-by-one",
        },
    ),
    Section(
        "Keys and windows",
        "`stream.group_by` gives a `grouped` stream, `grouped.agg` a stream again: a running aggregate, or one per window.",
        {
            "stream.group_by": "AGGREGATES.md#all-rows-as-one-group",
            "grouped.window": "EVENT_TIME.md#windows",
            "grouped.agg": "AGGREGATES.md#aggregates",
            "stream.as_rows": "EVENT_TIME.md#rows-that-replace-rows",
        },
    ),
    Section(
        "Aggregates",
        'What `grouped.agg` computes: `agg(total=hf.sum("amount * qty"))`. Types, nulls, NaN and overflow are those of the Spark\n'
        "SQL function of the same name; [AGGREGATES](AGGREGATES.md#aggregates) has them in a table.",
        dict.fromkeys(
            (
                "hf.count",
                "hf.sum",
                "hf.min",
                "hf.max",
                "hf.avg",
                "hf.stddev",
                "hf.variance",
                "hf.first",
                "hf.last",
                "hf.count_distinct",
                "hf.approx_distinct",
                "hf.percentile",
                "hf.top_k",
                "hf.collect_list",
                "hf.collect_set",
                "hf.Aggregate",
            )
        ),
    ),
    Section(
        "Event time",
        "Steps that wait for rows by the time in the rows themselves, and what becomes of those that they no longer wait for.\n"
        "[EVENT_TIME](EVENT_TIME.md) begins with the watermark.",
        {
            "stream.dedup": "EVENT_TIME.md#dedup",
            "stream.join": "EVENT_TIME.md#joins",
            "stream.substream": "SUBSTREAMS.md#labelling",
            "stream.late_to": "EVENT_TIME.md#rows-that-go-another-way",
            "stream.quarantine_to": "EVENT_TIME.md#rows-that-go-another-way",
        },
    ),
    Section(
        "Operators of your own",
        "A stateful step in a function of yours: [OWN_OPERATORS](OWN_OPERATORS.md) has one that runs.",
        {"stream.stateful": None, "hf.each_key": "OWN_OPERATORS.md#one-key-at-a-time", "hf.Context": None},
    ),
    Section(
        "Loops",
        "Rows come back until nothing changes any more: [CYCLES](CYCLES.md).",
        {"flow.feedback": None, "feedback.close_with": None},
    ),
    Section(
        "Stages",
        "What is said of the stage that makes a stream. Each gives the stream itself, so that they can stand in a chain.",
        {
            "stream.named": "EDITING.md#names",
            "stream.recover": "RECOVERY.md",
            "stream.read_from": "EDITING.md",
        },
    ),
    Section(
        "Sinks",
        "Where rows go: `stream.to` takes one of the others. [EDGES](EDGES.md#sinks) has what each promises.",
        {
            "stream.to": "SINKS.md",
            "hf.parquet": "SINKS.md",
            "hf.table": "SINKS.md#tables",
            "hf.kafka_sink": "KAFKA.md#writing-a-topic",
            "hf.delta": "LAKE.md#sinks",
            "hf.iceberg": "LAKE.md#sinks",
            "hf.foreach": "SINKS.md#functions",
            "hf.discard": None,
            "hf.own_sink": "EDGES.md#your-own",
        },
    ),
    Section(
        "Recovery policies",
        "How a stage comes back after a failure: `stream.recover(hf.no_sync(members=2))` for one, `hf.Flow(..., recover=...)` for all.\n"
        "[RECOVERY](RECOVERY.md#which-one) helps to choose.",
        {
            "hf.gap": None,
            "hf.upstream_backup": None,
            "hf.no_sync": None,
            "hf.strong_production": None,
            "hf.passive_standby": None,
            "hf.active_standby": None,
            "hf.snapshot": "SNAPSHOTS.md#settings",
        },
    ),
    Section(
        "Running",
        "`flow.run` runs a flow in this process; `holdfast run` runs it in processes that are watched over, and replaced when they\n"
        "die: [COMMANDS](COMMANDS.md).",
        {"flow.run": None, "Report": None, "StageProgress": None, "Lag": None},
    ),
    Section(
        "Reading from outside",
        "A channel or a state of a flow as a DataFrame of any Spark session: [READING](READING.md) has the options.",
        {"hf.register": None, "hf.forget_reader": "READING.md#what-is-kept"},
    ),
    Section(
        "Sources and sinks of your own",
        "What `hf.own_source` and `hf.own_sink` take is written against `holdfast.edges`;\n"
        "[EDGES](EDGES.md#your-own) tells more.",
        {
            "holdfast.edges.Source": None,
            "holdfast.edges.Item": None,
            "holdfast.edges.Taken": None,
            "holdfast.edges.Limits": None,
            "holdfast.edges.Sink": None,
            "holdfast.edges.SinkRecord": None,
            "holdfast.edges.admit": None,
            "holdfast.edges.batches": None,
            "holdfast.edges.TwoPhase": None,
        },
    ),
    Section(
        "Testing",
        inspect.getdoc(holdfast.testing) or "",
        {
            "holdfast.testing.SinkSuite": None,
            "holdfast.testing.Target": None,
            "holdfast.testing.TwoPhaseSuite": None,
            "holdfast.testing.Doubtful": None,
            "holdfast.testing.SourceSuite": None,
            "holdfast.testing.Origin": None,
            "holdfast_verify": "VERIFY.md#in-pytest",
            "Verified": None,
        },
    ),
    Section(
        "Errors",
        inspect.getdoc(inspect.getmodule(holdfast.HoldfastError)) or "",
        {
            "hf.HoldfastError": "COMMANDS.md#errors-and-exit-status",
            "hf.FlowError": None,
            "hf.PlanError": None,
            "hf.FlowImportError": None,
            "hf.CodeError": None,
            "hf.InputError": None,
            "hf.StateSchemaError": None,
            "hf.FencedError": None,
            "hf.LedgerError": None,
            "hf.StorageError": None,
            "hf.SinkError": None,
        },
    ),
)

# What names in signatures mean that are neither entries nor Python's.
TYPES = {
    "Stream": "what `flow.source` and every step gives: see [Steps](#steps).",
    "GroupedStream": "what `stream.group_by` gives: see [Keys and windows](#keys-and-windows).",
    "FeedbackStream": "what `flow.feedback` gives: a stream like any other, and `feedback.close_with`.",
    "SourceDescription": "what the functions of [Sources](#sources) give.",
    "SinkDescription": "what the functions of [Sinks](#sinks) give.",
    "Policy": "what the functions of [Recovery policies](#recovery-policies) give.",
    "Transformation": "a function of a DataFrame that gives a DataFrame, row by row.",
    "Update": "`function(rows, state, context) -> (new_state, output)`, of Arrow tables; either may be None for nothing.",
    "Final": "`function(state, context) -> output`, of Arrow tables; None for nothing.",
    "KeyUpdate": "`function(key, rows, state, context) -> (new_state, output)`: a tuple, a pandas DataFrame, and a dict, or None\n"
    "for a new key; gives a dict and a DataFrame, or None.",
    "Progress": "what a run has done so far: its `stages` by name, each a `StageProgress`, and the newest epoch\n"
    "that each of its `sinks` has published.",
    "EpochSample": "the figures of one epoch: `epoch`, `rows`, `seconds` and others.",
    "MergeSample": "the figures of one merge of a state: epochs `first` to `last`, `bytes` and `steps`.",
    "Option": "a str, int, float or bool.",
    "Json": "a dict that JSON can hold.",
    "pa": "the package `pyarrow`.",
    "SparkSession": "PySpark's.",
    "DataFrame": "PySpark's.",
    "StructType": "PySpark's: the names and types of columns.",
}
