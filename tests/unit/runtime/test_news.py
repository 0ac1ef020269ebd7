"""Loops look at the ledger again when it has changed, and hardly ever otherwise; nothing depends on being told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from holdfast.core import limits
from holdfast.core.errors import LedgerError
from holdfast.ledger import holder, inputs
from holdfast.ledger.inputs import Item
from holdfast.ledger.ledger import Ledger
from holdfast.runtime.news import News
from registered import register_stage


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path)
    assert holder.take(opened, "flow") == 1
    register_stage(opened, 1, "s", None, ["source:in"])
    yield opened
    opened.close()


def add(ledger: Ledger, name: str) -> None:
    inputs.add_items(ledger, 1, {"in": [Item(name, 1, 1, {})]})


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def heard(news: News) -> int:
    """The version, once it can be heard."""
    assert eventually(lambda: news.version is not None)
    assert news.version is not None
    return news.version


def test_what_this_process_writes_is_news_at_once(ledger: Ledger) -> None:
    with News(ledger) as news:
        heard(news)
        outlook = news.outlook()
        outlook.look()
        add(ledger, "a")
        assert outlook.is_due()


def test_a_quiet_ledger_gives_no_cause_to_look(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with News(ledger) as news:
        heard(news)
        outlook = news.outlook()
        outlook.look()
        assert not any(outlook.is_due() for _ in range(1_000))
        monkeypatch.setattr(limits, "LOOK_ANYWAY_MS", 0)
        outlook.look()
        assert outlook.is_due()


def test_what_another_process_writes_rings(ledger: Ledger, tmp_path: Path) -> None:
    rung = Event()
    with News(ledger, rung.set) as news, closing(Ledger(tmp_path)) as other:
        outlook = news.outlook()
        assert eventually(lambda: (outlook.look(), not outlook.is_due())[1])
        rung.clear()
        add(other, "a")
        assert rung.wait(30)
        assert outlook.is_due()


def test_whoever_cannot_hear_looks_every_time(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf() -> None:
        raise LedgerError("gone", heals=True)

    news = News(ledger)
    outlook = news.outlook()
    outlook.look()
    assert outlook.is_due()
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "watch", deaf)
        with news:
            outlook.look()
            assert outlook.is_due()


def test_what_changes_during_a_look_is_seen_by_the_next(ledger: Ledger) -> None:
    with News(ledger) as news:
        heard(news)
        outlook = news.outlook()
        outlook.look()
        with ledger.read():
            add(ledger, "a")
        assert outlook.is_due()
        outlook.look()
        assert eventually(lambda: not outlook.is_due() or (outlook.look(), False)[1])


def test_a_look_that_failed_is_taken_again(ledger: Ledger) -> None:
    with News(ledger) as news:
        heard(news)
        outlook = news.outlook()
        outlook.look()
        outlook.forget()
        assert outlook.is_due()
