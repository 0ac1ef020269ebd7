"""The traffic of substreams, counted."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.bench import tracker, tracker_picture
from holdfast.bench.tracker import exponent, figures_of, r2, series_of
from holdfast.bench.tracker_traffic import Traffic, by_punctuations, by_tracker, labels, simulated, two_stages
from holdfast.protocols.punctuation import punctuations
from holdfast.protocols.substreams import wire_bytes

SVG = "{http://www.w3.org/2000/svg}"


def test_punctuations_are_one_a_channel_and_as_long_as_they_are() -> None:
    graph = two_stages(12)
    [label] = labels(1)
    sent = [one for node in graph.nodes_of("sender") for one in punctuations(graph, node, label)]
    found = by_punctuations(12, 1)
    assert found.messages == len(sent) == 144
    assert found.bytes == sum(wire_bytes(one.to_json()) for one in sent)


def test_the_tracker_takes_two_reports_a_notice_and_a_last_report_for_every_node() -> None:
    assert by_tracker(7, 3, 1).messages == 3 * 7 * 4
    assert by_tracker(7, 3, 5).messages == 3 * 7 * (2 * 5 + 2)


def test_a_single_node_talks_to_itself() -> None:
    assert by_punctuations(1, 2).messages == 2
    assert by_tracker(1, 2, 1).messages == 8


def test_figures_say_how_traffic_grows_and_compare_at_a_hundred_nodes() -> None:
    found = [Traffic("punctuations", nodes, 2, 1, 2 * nodes**2, nodes) for nodes in (10, 100)]
    found += [Traffic("tracker", nodes, 2, 1, 8 * nodes, nodes * 2) for nodes in (10, 100)]
    found += [Traffic("tracker", nodes, 2, 10, 40 * nodes, nodes) for nodes in (10, 100)]
    figures = {figure.name: figure.value for figure in figures_of(found)}
    assert set(tracker.BARS) <= set(figures)
    assert figures["punctuation_over_tracker_p100"] == 25
    assert figures["punctuation_over_tracker_p100_10_epochs"] == 5
    assert figures["punctuation_bytes_over_tracker_p100"] == 0.5
    assert figures["punctuation_exponent"] == pytest.approx(2)
    assert figures["tracker_linear_r2"] == pytest.approx(1)


def test_a_parabola_is_no_line() -> None:
    bent = [Traffic("tracker", nodes, 1, 1, nodes**2, 0) for nodes in tracker.NODES]
    assert r2(bent) < 0.97
    assert exponent(bent) == pytest.approx(2)


def test_the_command_writes_figures_and_a_plot(tmp_path: Path) -> None:
    out, plot = tmp_path / "tracker.json", tmp_path / "tracker.svg"
    report = tracker.run(out, plot, tasks=(), quick=True)
    written = json.loads(out.read_text())
    assert written["figures"] == {figure.name: figure.value for figure in report.figures}
    assert {run["measured"] for run in written["runs"]} == {"simulation"}
    root = ElementTree.fromstring(plot.read_text())
    assert {"punctuations", "tracker"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_every_point_is_inside_its_panel() -> None:
    found = series_of(list(simulated((2, 9), 1, (1, 10))))
    root = ElementTree.fromstring(tracker_picture.drawn(found))
    curves = list(root.iter(f"{SVG}polyline"))
    assert len(curves) == 2 * len(found)
    for at, curve in enumerate(curves):
        left, right = tracker_picture.PANELS[at // len(found)]
        for place in curve.get("points", "").split():
            x, y = map(float, place.split(","))
            assert left <= x <= right
            assert tracker_picture.TOP <= y <= tracker_picture.BOTTOM
