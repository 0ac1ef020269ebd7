"""Starting over with a ledger and a table in PostgreSQL, and with a topic of Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest

import holdfast as hf
from edges.tables import run
from holdfast.core.errors import FencedError, SinkError
from holdfast.flow.flow_plan import FlowPlan
from holdfast.flow.planner import plan
from holdfast.ledger import holder
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.location import PASSWORD_VARIABLE, chosen
from holdfast.runtime.reset import Reset
from holdfast.sinks.kafka import KafkaSink
from holdfast.sinks.table import TableSink
from holdfast.testing.epochs import FLOW, SCHEMA, record, segments, write_segments


def planned(sink: object, name: str = FLOW) -> FlowPlan:
    flow = hf.Flow(name)
    flow.source("in", hf.rows(pa.table({"k": [1]}))).to(sink)  # type: ignore[arg-type]
    return plan(flow)


def test_a_ledger_goes_with_its_schema_and_a_table_loses_rows_and_record(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv(PASSWORD_VARIABLE, urlsplit(postgres).password or "")
    ledger = Ledger(work, chosen(work, postgres, FLOW))
    holder.release(ledger, holder.take(ledger, FLOW))
    ledger.close()
    run(postgres, "create schema s")
    sink = TableSink(postgres, "s.out", None, SCHEMA)
    sink.open(FLOW, 0, 5)
    sink.publish(record(0, generation=5), segments(write_segments(tmp_path / "epochs"), 0))
    sink.close()
    reset = Reset(planned(hf.table(postgres, "s.out")), work, targets=True)
    [(_, left)] = reset.find().targets
    assert (left.epoch, bool(left.rows)) == (0, True)
    other = Reset(planned(hf.table(postgres, "s.out"), "other"), tmp_path / "elsewhere", targets=True)
    with pytest.raises(SinkError, match="belongs to the flow"):
        other.carry_out()
    reset.carry_out()
    with psycopg.connect(postgres) as session:
        assert session.execute("select count(*) from s.out").fetchone() == (0,)
        assert session.execute("select count(*) from s.holdfast_sinks").fetchone() == (0,)
        schemas = session.execute(
            "select nspname from pg_namespace where nspname like 'holdfast_%'"
        ).fetchall()
    assert [name for (name,) in schemas if name != "holdfast_staging"] == []
    assert not work.exists()
    assert sink.open(FLOW, 0, 1) is None
    sink.close()


def test_a_topic_loses_its_record_and_keeps_its_messages(
    kafka: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    out = topic()
    description = hf.kafka_sink(kafka, out, records=f"{out}-records")
    sink = KafkaSink(description, SCHEMA)
    sink.open(FLOW, 0, 5)
    sink.publish(record(0, generation=5), segments(write_segments(tmp_path / "epochs"), 0))
    with pytest.raises(FencedError, match="which has published up to epoch 0"):
        KafkaSink(description, SCHEMA).open(FLOW, 0, 1)
    reset = Reset(planned(description), tmp_path / "work", targets=True)
    [(_, left)] = reset.find().targets
    assert (left.epoch, left.stays) == (0, "its messages: the new ones come behind them")
    reset.carry_out()
    assert reset.find().targets == ()
    reset.carry_out()
    assert KafkaSink(description, SCHEMA).open(FLOW, 0, 1) is None
    with pytest.raises(FencedError):
        sink.publish(record(1, generation=5), segments(write_segments(tmp_path / "epochs"), 1))
