"""The flow that a user makes and runs: the pure description, with `run`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.errors import FlowImportError
from holdfast.flow import columns
from holdfast.flow.flow import FlowDescription
from holdfast.flow.planner import plan
from holdfast.ledger.location import chosen
from holdfast.runtime import loader
from holdfast.runtime.progress import Progress, Report
from holdfast.runtime.survival import shortfall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Flow(FlowDescription):
    """A flow of stages that recover from failures.

    - `name`: letters, digits, `_`, `-` and `.`, at most 100. The work directory is `work/NAME` by default, and belongs to that name.
    - `guarantee`: what holds for every row from the sources to the sinks: `"exactly_once"`, the default, `"at_least_once"` or
      `"at_most_once"`. Sources, policies and sinks that cannot hold it are refused when the flow is planned.
    - `survives`: which loss the flow outlives: `"process"`; `"power"`, the default, for which files are carried to the disk in the
      background; `"machine"`, for which they are carried to the `replica`. That holds as long as
      the ledger is not lost too: in SQLite it is in the work directory, which is told when the flow is run or explained.
    - `recover`: the recovery policy of stages that have none of their own, such as `hf.active_standby()`. By default `hf.no_sync()`, with
      the tiers that `survives` needs.
    - `replica`: a directory that is not lost with this machine. None by default; one that nothing uses is refused.
    - `tracker`: how the end of substreams is found out, `"xor"`, the default, or `"punctuation"`: docs/SUBSTREAMS.md compares them.
    - `trigger`: `"10 seconds"` has each stage take rows of its sources in one epoch per interval at most, so that small files are read in
      batches. By default rows are taken as soon as there are any.

    Raises `hf.PlanError` if the name or a choice cannot be. What the flow cannot hold is told when it is planned, by `flow.run`,
    `holdfast run` and `holdfast explain`.
    """

    def run(
        self,
        work_dir: str | Path,
        *,
        until_idle: bool = False,
        drain: bool = False,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        take_over: bool = False,
        wait: bool = False,
        tasks: int | None = None,
        hash_bits: int = 64,
        observe: Callable[[Progress], None] | None = None,
        direct: bool = True,
        ledger: str | None = None,
    ) -> Report:
        """Run the flow in this process, until Ctrl-C; `holdfast run` runs it in processes that are watched over.

        - `work_dir`: where the flow keeps its state; made if it is not there. It is held by one process at a time.
        - `until_idle`: return when all that the sources hold has gone through; False by default. Windows that the last watermark does
          not reach stay open for the next run.
        - `drain`: take the input to have ended: close all windows, and return. False by default.
        - `master`: the Spark master, `"local[*]"` by default, or `sc://...` for Spark Connect.
        - `conf`: settings of Spark, none by default.
        - `spark`: a session to run on; by default one is made, with `master` and `conf`, and stopped in the end.
        - `take_over`: depose the process that runs the flow now; False by default.
        - `wait`: wait until no other process runs it; False by default.
        - `tasks`: how many tasks every epoch is spread over; by default one for 50,000 rows, and no more than can run at once.
        - `hash_bits`: cuts the key hash, which only tests want; 64 by default.
        - `observe`: a function that is called several times a second with what the run has done so far, a `Progress`, in the thread
          that called `run`. None by default.
        - `direct`: False sends all rows through Spark SQL, also where tasks could read files themselves. True by default.
        - `ledger`: `"postgresql://user@host/database"` keeps the ledger there, from the first run on; the work directory remembers
          where it is, without the password. By default it is in the work directory.

        Returns a `Report` of what the run did.

        Raises `hf.PlanError` if the flow cannot be planned, and `hf.FlowImportError` while its file is imported. Then `hf.LedgerError` if
        another process holds the work directory or the ledger is not this flow's, `hf.StateSchemaError` if its state was made by another
        flow, `hf.FencedError` if it was deposed, `hf.CodeError` if a function of the flow raised, `hf.InputError`, `hf.StorageError` and
        `hf.SinkError` if a source, a file of its own or a target fails. Nothing is lost by any of them: the next run goes on.
        """
        if loader.is_importing():
            raise FlowImportError(
                f"flow {self.name!r} calls run() while its file is imported",
                operation="import",
                hint='Put the call below `if __name__ == "__main__":`.',
            )
        if _in_notebook():
            print(f"Flow {self.name!r} runs inside this notebook's process: it ends when the kernel does.")
        planned = plan(self)
        columns.check(planned)
        missing = shortfall(planned.survives, chosen(Path(work_dir), ledger, planned.name))
        if missing:
            warnings.warn(str(missing), stacklevel=2)
        from holdfast.runtime import worker

        loader.ship_module_by_value(self)
        options = worker.RunOptions(
            until_idle or drain,
            master,
            dict(conf or {}),
            spark,
            take_over,
            wait,
            tasks,
            hash_bits,
            drain,
            observe,
            direct,
            ledger=ledger,
        )
        return worker.run(planned, work_dir, options)


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel: there is no flow file that another process could import."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
