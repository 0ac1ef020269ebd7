"""The picture of overhead against recovery time."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.bench import picture
from holdfast.bench.picture import Point, drawn, points_of
from holdfast.bench.policy_job import CASES

SVG = "{http://www.w3.org/2000/svg}"


def test_both_files_make_a_picture_with_a_label_for_every_policy(tmp_path: Path) -> None:
    for name, figures in {
        "policies": {f"{name}_over_gap": 1.0 + 0.1 * n for n, name in enumerate(CASES) if name != "gap"},
        "recovery": {f"{case.recovery}_first_epoch_s": 0.3 + n for n, case in enumerate(CASES.values())},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"figures": figures}))
    out = tmp_path / "out.svg"
    picture.run(tmp_path / "policies.json", tmp_path / "recovery.json", out)
    root = ElementTree.fromstring(out.read_text())
    assert root.tag == f"{SVG}svg"
    assert {case.call for case in CASES.values()} <= {text.text for text in root.iter(f"{SVG}text")}
    assert len(list(root.iter(f"{SVG}circle"))) == len(CASES)


def test_points_are_inside_the_frame_and_the_faster_ones_lower() -> None:
    root = ElementTree.fromstring(drawn([Point("slow", 1.0, 30.0), Point("fast", 2.1, 0.2)]))
    slow, fast = ((float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter(f"{SVG}circle"))
    for x, y in (slow, fast):
        assert picture.LEFT <= x <= picture.RIGHT
        assert picture.TOP <= y <= picture.BOTTOM
    assert fast[0] > slow[0]
    assert fast[1] > slow[1]


def test_labels_of_equal_points_do_not_cover_each_other() -> None:
    root = ElementTree.fromstring(drawn([Point("<one>", 1.0, 1.0), Point("other", 1.0, 1.0)]))
    heights = [
        float(text.get("y", "")) for text in root.iter(f"{SVG}text") if text.text in ("<one>", "other")
    ]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) >= picture.LINE_PX


def test_policies_that_one_file_lacks_are_left_out() -> None:
    [point] = points_of({}, {"gap_first_epoch_s": 9.0, "warm_first_epoch_s": 1.0})
    assert point == Point("gap()", 1.0, 9.0)
    with pytest.raises(ValueError, match="no policy"):
        points_of({}, {})
