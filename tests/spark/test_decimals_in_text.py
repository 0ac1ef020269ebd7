"""A decimal in JSON or CSV that its type cannot hold exactly is malformed, never rounded."""

from __future__ import annotations

import json
import random
from decimal import Decimal, InvalidOperation
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from holdfast.flow.endpoints import FilesSource
from holdfast.sources.text_frames import TextFrames

HARD = [
    "1.239",
    "1.500",
    "1e-3",
    "1E2",
    "123456789.00",
    "12345678.99",
    "99999999.995",
    "0.005",
    "-0.00",
    "0e9",
    "1e8",
]
HARD += [
    "1e999999999",
    "1e-999999999",
    "00012.30",
    "100e-4",
    "1,234.50",
    "1.",
    ".5",
    "+1.5",
    ".",
    "",
    "1.2.3",
    "e5",
]
HARD += [
    "NaN",
    "Infinity",
    "0x1",
    " 1.5",
    "1.5 ",
    "1_0",
    "1.5f",
    "9" * 60,
    "0." + "0" * 60,
    "0." + "0" * 50 + "1",
]


def fits(text: str, kind: t.DecimalType) -> Decimal | None:
    """The number if the type holds it exactly, by Python's own decimals."""
    if not set(text) <= set("0123456789.,eE+-"):
        return None
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
    _, digits, exponent = number.as_tuple()
    stripped = "".join(map(str, digits)).lstrip("0")
    assert isinstance(exponent, int)
    if not stripped:
        return Decimal(0)
    exponent += len(stripped) - len(stripped.rstrip("0"))
    stripped = stripped.rstrip("0")
    whole = len(stripped) + exponent
    return number if -exponent <= kind.scale and whole <= kind.precision - kind.scale else None


def texts(seed: int, many: int) -> list[str]:
    """Numbers on both sides of what fits."""
    drawn = random.Random(seed)
    found = []
    for _ in range(many):
        whole = "".join(drawn.choices("0123456789", k=drawn.randint(1, 11)))
        places = "".join(drawn.choices("0012345", k=drawn.randint(0, 5)))
        power = drawn.choice(["", "", "", f"e{drawn.randint(-6, 6)}", f"E+{drawn.randint(0, 4)}"])
        found.append(drawn.choice(["", "-"]) + whole + ("." + places if places else "") + power)
    return found


def frames(form: str, schema: t.StructType) -> TextFrames:
    return TextFrames("s", FilesSource("in", schema.simpleString(), form, "quarantine"), schema)


def as_json_number(text: str) -> bool:
    try:
        json.loads(text if text == text.strip() else "x", parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return True


@pytest.mark.parametrize("kind", [t.DecimalType(10, 2), t.DecimalType(38, 0), t.DecimalType(38, 38)], ids=str)
def test_a_decimal_is_read_exactly_or_not_at_all(
    spark: SparkSession, tmp_path: Path, kind: t.DecimalType
) -> None:
    schema = t.StructType(
        [
            t.StructField("id", t.IntegerType()),
            t.StructField("n", kind),
            t.StructField("at", t.TimestampType()),
        ]
    )
    drawn = [*HARD, *texts(7, 300)]
    plain = [text for text in drawn if as_json_number(text)]
    at = "2026-01-01T00:00:00Z"
    lines = [f'{{"id": {i}, "n": {text}, "at": "{at}"}}' for i, text in enumerate(plain)]
    lines += [
        f'{{"id": {len(plain) + i}, "n": {json.dumps(text)}, "at": "{at}"}}' for i, text in enumerate(drawn)
    ]
    (tmp_path / "a.json").write_text("\n".join(lines))
    rows = [f'{i},"{text}",{at}' for i, text in enumerate(drawn)]
    (tmp_path / "a.csv").write_text("\n".join(["id,n,at", *rows]))
    for form, given in (("json", plain + drawn), ("csv", drawn)):
        read = frames(form, schema)
        kept = {row.id: row.n for row in read.rows(spark, [str(tmp_path / f"a.{form}")]).collect()}
        aside = read.malformed(spark, [str(tmp_path / f"a.{form}")]).collect()
        expected = {i: fits(text, kind) for i, text in enumerate(given) if fits(text, kind) is not None}
        if form == "csv":
            expected |= {i: None for i, text in enumerate(given) if text == ""}
        assert kept == expected, form
        assert len(aside) == len(given) - len(expected), form
        assert {row.reason.split(":")[0] for row in aside} == {f"n is no {kind.simpleString()}"}, form
        assert all(row.row for row in aside)


def test_a_decimal_inside_other_values_is_read_exactly_too(spark: SparkSession, tmp_path: Path) -> None:
    money = t.DecimalType(10, 2)
    inner = t.StructType([t.StructField("a`b", money), t.StructField("s", t.StringType())])
    schema = t.StructType(
        [
            t.StructField("id", t.IntegerType()),
            t.StructField("many", t.ArrayType(money)),
            t.StructField("by", t.MapType(t.StringType(), money)),
            t.StructField("in", inner),
        ]
    )
    good = [
        {"id": 0, "many": [1.5, "2.50", None], "by": {"x": 1.250}, "in": {"a`b": 3, "s": "t"}},
        {"id": 1, "many": None, "by": None, "in": None},
        {"id": 2, "many": [], "by": {}, "in": {}},
    ]
    bad = [
        {"id": 3, "many": [1.5, 1.239]},
        {"id": 4, "by": {"x": 1.25, "y": 1e9}},
        {"id": 5, "in": {"a`b": "0.001"}},
    ]
    path = tmp_path / "a.json"
    path.write_text("\n".join(json.dumps(line) for line in [*good, *bad]))
    read = frames("json", schema)
    kept = {row.id: row.asDict(recursive=True) for row in read.rows(spark, [str(path)]).collect()}
    assert kept == {
        0: {"id": 0, "many": [Decimal("1.50"), Decimal("2.50"), None], "by": {"x": Decimal("1.25")},
            "in": {"a`b": Decimal(3), "s": "t"}},
        1: {"id": 1, "many": None, "by": None, "in": None},
        2: {"id": 2, "many": [], "by": {}, "in": {"a`b": None, "s": None}},
    }  # fmt: skip
    aside = read.malformed(spark, [str(path)]).collect()
    assert sorted(json.loads(row.row)["id"] for row in aside) == [3, 4, 5]
