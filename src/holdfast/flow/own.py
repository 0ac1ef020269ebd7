"""What a user's own operator is given and gives back; and a way to write one key by key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Context:
    """What an epoch knows beside its rows. Times are microseconds since 1970, UTC."""

    epoch: int
    watermark_us: (
        int | None
    )  # no row below it is expected any more; the plan's time where there is no event time
    now_us: int  # what the plan calls the present time; the same when it is run again
    expired: pa.Table  # keys and state of the keys that have expired; they are gone from the state


# (rows, state, context) -> (new state, output); either may be None for nothing.
Update = Callable[["pa.Table", "pa.Table", Context], "tuple[pa.Table | None, pa.Table | None]"]

# (state of the keys that end, context) -> output; None for nothing.
Final = Callable[["pa.Table", Context], "pa.Table | None"]

# (key, rows, state or None, context) -> (new state or None, rows of output or None).
KeyUpdate = Callable[
    ["tuple[object, ...]", "pd.DataFrame", "dict[str, Any] | None", Context],
    "tuple[dict[str, Any] | None, pd.DataFrame | None]",
]


@dataclass(frozen=True)
class EachKey:
    """A function of one key's rows, made into one of whole tables. See `each_key`."""

    function: KeyUpdate
    by: tuple[str, ...]

    def __call__(self, rows: pa.Table, state: pa.Table, context: Context) -> tuple[pa.Table, pa.Table | None]:
        """Call the function for every key, in order."""
        import pandas as pd
        import pyarrow as pa

        before = {_key(row, self.by): row for row in state.to_pylist()}
        states: list[dict[str, Any]] = []
        outputs: list[pd.DataFrame] = []
        frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
        for values, of_key in frame.groupby(list(self.by), dropna=False, sort=False):
            key = tuple(None if value is pd.NA else value for value in values)
            held = before.get(key)
            new, output = self.function(key, of_key.reset_index(drop=True), held, context)
            if new is not None:
                states.append({**dict(zip(self.by, key, strict=True)), **new})
            if output is not None and len(output):
                outputs.append(output)
        made = pa.Table.from_pandas(pd.concat(outputs), preserve_index=False) if outputs else None
        return pa.Table.from_pylist(states, schema=state.schema), made


def each_key(function: KeyUpdate, *, by: tuple[str, ...] | list[str]) -> EachKey:
    """Write an operator of your own key by key, for `stream.stateful`. It is a convenience.

    A Python call for every key is tens of times slower than a function of whole tables.

    - `function`: `function(key, rows, state, context) -> (state, output)`. `rows` is a pandas DataFrame of the key's rows, in order;
      `state` is a dict, or None for a new key. Return None for a state to delete it, and for no output.
    - `by`: the key columns, the same as those of `stateful`.
    """
    return EachKey(function, tuple(by))


def inner_function(function: Update) -> Callable[..., object]:
    """The function that the user wrote."""
    return function.function if isinstance(function, EachKey) else function


def _key(row: dict[str, Any], by: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(row[name] for name in by)
