"""What a run shows and records while it goes: the CSV tables, TensorBoard, the bar; and requests to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from rich.console import Console

from farfield.progress import Progress
from farfield.runs.run import LOSS_COLUMNS, VALIDATION_COLUMNS, Run, Table


class Log:
    """Records steps and validations from step ``first`` on, and shows them: a bar on a terminal, else a few lines."""

    def __init__(self, run: Run, first: int, steps: int, console: Console):
        from torch.utils.tensorboard import SummaryWriter  # a second to import

        self.console, self.steps = console, steps
        self.losses = Table(run.losses_path, LOSS_COLUMNS, first, every_step=True)
        self.validations = Table(run.validation_path, VALIDATION_COLUMNS, first)
        self.tensorboard = SummaryWriter(str(run.tensorboard_path), purge_step=first + 1)
        self.bar = Progress(console)
        self.task = self.bar.add_task(f"step {first}/{steps}", total=steps, completed=first)
        self.bar.start()

    def step(self, step: int, epoch: int, loss: float, rate: float, points_per_second: float, seconds: float) -> None:
        """One optimiser step."""
        self.losses.add(
            step=step,
            epoch=epoch,
            loss=loss,
            learning_rate=rate,
            points_per_second=round(points_per_second, 1),
            seconds=round(seconds, 3),
        )
        for name, value in (("loss", loss), ("learning_rate", rate), ("points_per_second", points_per_second)):
            self.tensorboard.add_scalar(name, value, step)
        told = f"step {step}/{self.steps}, loss {loss:.3e}, rate {rate:.1e}, {points_per_second:,.0f} points/s"
        self.bar.update(self.task, completed=step, description=told)

    def validation(self, step: int, epoch: int, loss: float, best: float, seconds: float) -> None:
        """One validation."""
        self.validations.add(step=step, epoch=epoch, loss=loss, seconds=round(seconds, 3))
        self.tensorboard.add_scalar("validation_loss", loss, step)
        mark = ", the best so far" if loss <= best else ""
        self.console.print(
            f"step {step}/{self.steps}, {seconds:.0f} s: validation loss {loss:.4e}{mark}", highlight=False
        )

    def sync(self) -> None:
        """Have on disk what a checkpoint continues from."""
        self.losses.sync()
        self.validations.sync()

    def close(self) -> None:
        """Finish the files and the bar."""
        self.bar.stop()
        self.tensorboard.close()
        self.losses.close()
        self.validations.close()


class StopRequest:
    """SIGTERM or Ctrl-C sets ``requested`` instead of ending the process; the same signal again ends it at once."""

    def __init__(self) -> None:
        self.requested = False
        self._earlier: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            for number in (signal.SIGTERM, signal.SIGINT):
                self._earlier[number] = signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.close()

    def close(self) -> None:
        """Restore the handlers from before."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
