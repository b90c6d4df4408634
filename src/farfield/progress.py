"""How long something will take: a bar on a terminal; in a pipe or a log file, a line now and then."""

from __future__ import annotations

import time
from typing import Any

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_EVERY = 20.0  # seconds between two lines


class Progress(rich.progress.Progress):
    """Bars for several tasks, each with the time it has taken and the time it has left."""

    def __init__(self, console: Console, **options: Any):
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            **options,
        )
        self._last_line = time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """As rich does."""
        super().update(task_id, **changes)
        self._tell(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """As rich does."""
        super().advance(task_id, advance)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if self.console.is_terminal or now - self._last_line < _EVERY:
            return
        self._last_line = now
        task = self._tasks[task_id]
        left = "" if task.time_remaining is None else f", {_duration(task.time_remaining)} left"
        self.console.print(f"{task.description.strip()}: {task.percentage:.0f} %{left}", highlight=False, markup=False)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
