"""A work directory made by hand, as `written_state`, of a flow that snapshots capture: for commands that look and restore."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from command import Said, holdfast
from holdfast.ledger import epochs, holder, schema, snapshots, starts
from holdfast.protocols.snapshots import Part
from written_state import WrittenState


class Captured(WrittenState):
    """A stage `means` that snapshots capture, and a sink that reads it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.discover(2, 1, 40, 7, 5, 5)
        with self.ledger.write(self.generation) as tx:
            snapshots.set_region(tx, ["means"], ["means"])
            starts.add_cursor(tx, "sink:out", "channel:means.out", 0)

    def epoch(self) -> None:
        self.commit({"ann": (1.0, 1)})

    def take(self) -> int:
        """A snapshot of all that there is; the oldest that was asked for, if one was."""
        number = snapshots.begin(self.ledger, self.generation, "aligned")
        with self.ledger.read() as tx:
            row = epochs.stage_row(tx, "means")
            part = Part(row.head, snapshots.standing(tx, row).positions)
        snapshots.add_part(self.ledger, row, number, part)
        with self.ledger.read() as tx:
            (one,) = snapshots.all_snapshots(tx, "preparing")
        snapshots.commit(self.ledger, self.generation, one)
        snapshots.mark_done(self.ledger, self.generation, [number])
        return number

    def ask(self, name: str | None = None) -> int:
        with self.ledger.unfenced_write() as tx:
            return snapshots.ask(tx, name)

    def asked(self) -> list[int]:
        with self.ledger.read() as tx:
            return [one.number for one in snapshots.all_snapshots(tx, "asked")]

    def sink_has(self, epoch: int, consumer: str = "sink:out") -> None:
        table = schema.cursors
        with self.ledger.unfenced_write() as tx:
            mine = table.c.consumer == consumer
            tx.execute(sa.update(table).where(mine).values(processed=epoch + 1, needed=epoch + 1))

    def stop(self) -> None:
        holder.release(self.ledger, self.generation)

    def say(self, *words: object, command: str = "snapshot") -> Said:
        return holdfast(command, *words, "--work-dir", self.root)

    def error(self, *words: object) -> dict[str, str]:
        said = self.say(*words, "--json")
        assert said.status == 1, said
        return said.error


def captured(work: Path) -> Captured:
    """Snapshots 0 (epoch -1), 1 (epoch 0, asked for, `early`) and 2 (epoch 2); epoch 3 is covered by none."""
    made = Captured(work)
    made.take()
    made.epoch()
    made.ask("early")
    made.take()
    made.epoch()
    made.epoch()
    made.take()
    made.epoch()
    return made
