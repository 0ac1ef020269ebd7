"""The JSON file, the page, the JUnit file and the terminal say the same, and no text in them can do harm."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from campaigns import HOSTILE, POINTS, campaign, hostile, outcome, verdict
from holdfast.verify import html, junit, report, text
from holdfast.verify.classes import Recovery
from holdfast.verify.outcome import Campaign
from holdfast.verify.values import printable

SAFE = printable(HOSTILE)


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def terminal(found: Campaign) -> str:
    out = io.StringIO()
    text.show(found, Console(file=out, width=100_000, force_terminal=False))
    return out.getvalue()


def test_what_cannot_be_printed_is_written_out() -> None:
    assert printable("a\tb\nä€😀") == "a\tb\nä€😀"
    assert SAFE.endswith(r"\x00\x1b[31m\x9b\ud800\uffff")


def test_the_json_file_holds_what_the_campaign_says_of_itself(tmp_path: Path) -> None:
    report.write(hostile(), tmp_path / "deep" / "verify.json")
    read = json.loads((tmp_path / "deep" / "verify.json").read_text("utf-8"))
    assert read == hostile().to_json()
    assert read["flow"] == HOSTILE
    assert read["exit_status"] == 1
    [first, *_] = read["outcomes"]
    assert first["observed"] == "rollback-divergent"
    assert first["timing"] == {"detect_s": 0.25, "restore_s": 1.5, "caught_up_s": None}
    assert first["verdicts"][0]["extra"][0] == {HOSTILE[:10]: "<b>\x00", "times": 1}


def test_junit_has_a_case_a_run_and_parses_back(tmp_path: Path) -> None:
    junit.write(hostile(), tmp_path / "deep" / "junit.xml")
    suite = ElementTree.parse(tmp_path / "deep" / "junit.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["4", "2", "1", "0"]
    wrong, hung, missed, good = suite.iter("testcase")
    assert wrong.get("name") == f"{SAFE} at {SAFE}"
    failure = wrong.find("failure")
    assert failure is not None
    assert failure.get("message") == "precise predicted, rollback-divergent observed"
    assert f"again: holdfast verify {SAFE} --seed 7" in (failure.text or "")
    assert "<b>" in (failure.text or "")
    assert SAFE in (hung.findtext("failure") or "")
    assert missed.find("skipped") is not None
    assert len(good) == 0


def test_junit_fails_a_flow_that_is_not_deterministic() -> None:
    suite = junit.suite(campaign(outcome(), deterministic=False))
    gate, run = suite.iter("testcase")
    assert gate.find("failure") is not None
    assert run.find("failure") is None
    assert suite.get("failures") == "1"


def test_the_page_shows_hostile_texts_and_runs_none(tmp_path: Path) -> None:
    html.write(hostile(), tmp_path / "deep" / "verify.html")
    page = Page((tmp_path / "deep" / "verify.html").read_text("utf-8"))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "b", "img", "link", "iframe"}
    allowed = {"class", "title", "lang", "charset", "name", "content", "http-equiv"}
    assert {name for _, attributes in page.elements for name in attributes} <= allowed
    assert any(SAFE in words for words in page.words)
    assert "\x00" not in "".join(page.words)


def test_the_page_colours_runs_and_shows_how_to_see_a_violation_again() -> None:
    wrong = verdict(["a", "b"])
    found = campaign(outcome(), outcome(wrong.recovery, point="commit.before", verdicts=(wrong,)))
    page = Page(html.page(found))
    kinds = [attributes["class"] for tag, attributes in page.elements if tag == "span"]
    assert kinds == ["run precise", "run violation"]
    words = "\n".join(page.words)
    assert "holdfast verify passive() --seed 7" in words
    assert "out: rollback-divergent (order unchecked; 0 rows missing, 1 too many)" in words
    assert f"2 of {len(POINTS)} points reached." in words
    assert "sweep.mid" in words


def test_the_page_of_nothing_is_still_a_page() -> None:
    assert "nothing was verified" in html.page(campaign())


def test_the_terminal_shows_classes_violations_and_what_was_not_reached() -> None:
    wrong = verdict([])
    found = campaign(
        outcome(), outcome(wrong.recovery, policy="gap()", predicted=Recovery.GAP, verdicts=(wrong,))
    )
    lines = terminal(found).splitlines()
    assert lines[0].split() == [
        "policy", "precise", "rollback-divergent", "no", "verdict", "not", "reached", "violations",
    ]  # fmt: skip
    assert lines[1].split() == ["passive()", "1"]
    assert "violation: gap(), kill -9 at plan.after: gap predicted, rollback-divergent observed" in lines
    assert '  - {"<script>al": "a", "times": 1}' in lines
    assert "  again: holdfast verify gap() --seed 7" in lines
    assert "never reached: commit.before, sweep.mid" in lines
    assert lines[-1] == "orders: 1 violation at 1 point in 2 runs; 2 points not reached (seed 7)"


def test_the_terminal_takes_no_orders_from_names() -> None:
    shown = terminal(hostile())
    assert SAFE in shown
    assert "\x1b" not in shown
    assert "\x9b" not in shown


def test_a_dash_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    report.write(hostile(), report.STDOUT)
    assert json.loads(capsys.readouterr().out) == hostile().to_json()
