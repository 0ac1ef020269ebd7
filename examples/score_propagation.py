"""How far a score reaches: every node passes a share of its own on along its edges, until nothing rises any more.

Run it with `holdfast run examples/score_propagation.py --work-dir scores-work/work --until-idle`; the scores go to the table
`scores` of SCORES_HOME/scores.db (./scores-work by default).

What a node passes on comes back in front of the same step, as often as it takes: no chain of stages is long enough for
every graph, so the flow has a loop. A node's score is the largest that it was ever given. Shares are whole numbers, more
never becomes less on its way along an edge, and whether a score is passed on depends on the score alone: so there is one
result, in whatever order rows come and however they are cut into epochs. (Had the filter looked at how much a score
has risen, many small rises would be lost where one large one is not, and epochs would show in the result.) Only what has
risen is passed on, and a share below LEAST is not: the loop comes to rest.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

import holdfast as hf

HOME = Path(os.environ.get("SCORES_HOME", "scores-work"))
NODES, LEAST = 400, 5

flow = hf.Flow("score-propagation")
edges = flow.source(
    "edges",
    hf.generate(
        "node long, to long, percent long",
        keys={"node": NODES, "to": NODES, "percent": 96},
        rows=1_200,
        per_epoch=200,
        seed=3,
    ),
)
seeds = flow.source(
    "seeds",
    hf.generate("node long, score long", keys={"node": NODES, "score": 1_000}, rows=24, per_epoch=4, seed=4),
)
passed = flow.feedback("passed", schema="node long, score long")


def without_edge(given: DataFrame) -> DataFrame:
    """Scores beside edges: a row is either."""
    return given.selectExpr("node", "score", "cast(null as long) to", "cast(null as long) percent")


def without_score(given: DataFrame) -> DataFrame:
    """Edges beside scores."""
    return given.selectExpr("node", "cast(null as long) score", "to", "percent")


def best(rows: pa.Table, state: pa.Table, context: hf.Context) -> tuple[pa.Table, pa.Table]:
    """By node, the largest score so far (-1 before there is one) and its edges; out goes what has risen or is new."""
    nodes = np.unique(np.concatenate([state["node"], rows["node"]]))
    before = np.full(len(nodes), -1)
    before[np.searchsorted(nodes, state["node"])] = state["score"]
    score = before.copy()
    np.maximum.at(score, np.searchsorted(nodes, rows["node"]), np.asarray(pc.fill_null(rows["score"], -1)))
    held, new = unpacked(state), rows.filter(pc.is_valid(rows["to"])).select(["node", "to", "percent"])
    edges = widest(pa.concat_tables([held, new]))
    new_state = pa.table({"node": nodes, "score": score, **packed(edges, nodes, state.schema)})
    own = pa.table({"node": nodes, "score": score}).filter(pa.array(score > before))
    # An edge may come long after the score that it passes on.
    passes = (score > before) | (np.isin(nodes, new["node"]) & (score >= 0))
    origin = np.searchsorted(nodes, edges["node"])
    share = score[origin] * np.asarray(edges["percent"]) // 100
    along = pa.table({"node": edges["node"], "to": edges["to"], "share": share}).filter(passes[origin])
    return new_state, pa.concat_tables([own, along], promote_options="default")


def widest(edges: pa.Table) -> pa.Table:
    """Each edge once, in order, with the largest share that was ever said of it."""
    once = edges.group_by(["node", "to"]).aggregate([("percent", "max")])
    return once.rename_columns(["node", "to", "percent"]).sort_by(
        [("node", "ascending"), ("to", "ascending")]
    )


def packed(edges: pa.Table, nodes: np.ndarray, schema: pa.Schema) -> dict[str, pa.Array]:
    """The edges of each node as two lists."""
    bounds = pa.array(np.append(np.searchsorted(edges["node"], nodes), len(edges)), pa.int32())
    values = edges.combine_chunks()
    return {
        name: pa.ListArray.from_arrays(bounds, pa.array(np.asarray(values[name]))).cast(
            schema.field(name).type
        )
        for name in ("to", "percent")
    }


def unpacked(state: pa.Table) -> pa.Table:
    """The edges of each node as rows."""
    lengths = np.asarray(pc.list_value_length(state["to"]))
    node = np.repeat(np.asarray(state["node"]), lengths)
    flat = {name: pc.list_flatten(state[name]) for name in ("to", "percent")}
    return pa.table({"node": node, **flat}).cast(
        pa.schema([(name, pa.int64()) for name in ("node", "to", "percent")])
    )


given = edges.transform(without_score).union(seeds.union(passed).transform(without_edge))
risen = given.stateful(
    best,
    by=["node"],
    state="score long, to array<long>, percent array<long>",
    output="node long, score long, to long, share long",
).named("best")
risen.transform(lambda df: df.where("to is null").select("node", "score")).named("scores").to(
    hf.table(f"sqlite:///{HOME / 'scores.db'}", "scores", key=["node"])
)
passed.close_with(
    risen.transform(
        lambda df: df.where(f"share >= {LEAST}").selectExpr("to as node", "share as score")
    ).named("passing")
)

if __name__ == "__main__":
    flow.run(HOME / "work", until_idle=True, master="local[*]")
