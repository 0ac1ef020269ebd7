"""Brokers that are away when a campaign makes or drops what its runs have there."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.errors import FlowError
from holdfast.verify.targets import _Topic


@pytest.mark.parametrize(
    "ask",
    [lambda topic: topic.make("one"), lambda topic: topic.drop("one"), lambda topic: topic.names("holdfast")],
    ids=["make", "drop", "names"],
)
def test_a_broker_that_is_away_is_named_with_what_to_do(
    ask: Callable[[_Topic], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KAFKA_OUTAGE_MS_MAX", 0)
    monkeypatch.setattr(limits, "KAFKA_ANSWER_MS_MAX", 300)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(FlowError, match=f"127.0.0.1:{port}") as told:
        ask(_Topic(hf.kafka_sink(f"127.0.0.1:{port}", "totals")))
    assert told.value.heals
    assert "--restart" in str(told.value.hint)
