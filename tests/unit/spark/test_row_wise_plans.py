"""Plans as Spark explains them, read as trees: inputs, subqueries, literals over several lines, great depth."""

from __future__ import annotations

from holdfast.spark.plan_text import parsed

EXPLAINED = """== Parsed Logical Plan ==
'Project [*]

== Analyzed Logical Plan ==
k: bigint, s: string
Project [k#0L, s#1]
+- Filter (cast(v#1L as double) > scalar-subquery#209 [])
   :  +- Aggregate [avg(v#213L) AS avg(v)#211]
   :     +- LogicalRDD [k#212L, v#213L], false
   +- Join Inner, (k#0L = k#4L)
      :- Project [k#0L, one
line
  and another AS s#1]
      :  +- LogicalRDD [k#0L, v#1L], false
      +- LogicalRDD [k#4L, name#5], false

== Optimized Logical Plan ==
Aggregate [nothing]
"""


def test_steps_have_their_inputs_and_subqueries_apart() -> None:
    root = parsed(EXPLAINED)
    (kept,) = root.inputs
    (average,), (join,) = kept.subqueries, kept.inputs
    assert (kept.name, average.name, join.name) == ("Filter", "Aggregate", "Join")
    assert [step.name for step in join.inputs] == ["Project", "LogicalRDD"]
    assert [step.name for step in join.inputs[0].inputs] == ["LogicalRDD"]
    assert [step.name for step in root.from_the_leaves()] == [
        "LogicalRDD", "Aggregate", "LogicalRDD", "Project", "LogicalRDD", "Join", "Filter", "Project",
    ]  # fmt: skip


def test_a_plan_may_be_deeper_than_pythons_stack() -> None:
    steps = [f"{'   ' * depth}+- Project [k#{depth}]" for depth in range(5_000)]
    text = "\n".join(["== Analyzed Logical Plan ==", "k: bigint", "Project [k#0]", *steps])
    assert sum(1 for _ in parsed(text).from_the_leaves()) == 5_001
