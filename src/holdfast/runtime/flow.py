"""The flow that a user makes and runs: the pure description, with `run`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.errors import FlowImportError
from holdfast.flow.flow import FlowDescription
from holdfast.flow.planner import plan
from holdfast.runtime import loader
from holdfast.runtime.progress import Progress, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Flow(FlowDescription):
    """A flow of stages that recover from failures.

    `guarantee` is checked when the flow is planned. `survives` says which loss the flow outlives:
    `"process"`, or `"power"` (the default), for which files are carried to the disk in the background.
    `trigger="10 seconds"` has each stage take rows of its sources in one epoch per interval at most, so that small files
    are read in batches; without it, as soon as there are any.
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
        """Run the flow in this process; with `until_idle`, until all that the sources hold has gone through.

        Windows that the last watermark does not reach stay open for the next run; `drain` takes the input to
        have ended, closes them too, and returns.

        A work directory is held by one process: `wait` waits for another to let go of it, `take_over`
        deposes it. `tasks` is how many tasks every epoch is spread over (by default one for 50,000
        rows, and no more than can run at once). `hash_bits` cuts the key hash, which only tests want.
        `direct=False` sends all rows through Spark SQL, also where tasks could read files themselves.

        `ledger="postgresql://user@host/database"` keeps the ledger there instead of in the work directory, from the
        first run on; the work directory remembers where it is, without the password.
        """
        if loader.is_importing():
            raise FlowImportError(
                f"flow {self.name!r} calls run() while its file is imported",
                operation="import",
                hint='Put the call below `if __name__ == "__main__":`.',
            )
        if _in_notebook():
            print(f"Flow {self.name!r} runs inside this notebook's process: it ends when the kernel does.")
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
        return worker.run(plan(self), work_dir, options)


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel: there is no flow file that another process could import."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
