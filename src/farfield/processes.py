"""Processes that work on one domain: how they are started, find one another, and notice that one of them is gone.

    farfield predict --devices 2 ...                  starts two processes here, and ends both if one fails
    torchrun --nproc-per-node 4 script.py             `with joined() as group:` in the script; SLURM's srun likewise

A process that dies closes its connections, and the others hear of it at once. One that hangs, or a machine that is cut
off, is noticed by its pulse: every process counts in the group's store, and stops if another has not counted for the
timeout. So a slow process is never taken for a lost one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever starts others need not wait for torch
    from torch.distributed import TCPStore

    from farfield.attention.group import Group

TIMEOUT = 30.0
"""Seconds without a sign of life after which a process counts as lost."""
_LOST = 75  # the exit code of a process that stops because another is gone
_GRACE = 2.0  # seconds in which processes end by themselves when one has failed, before they are told to


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int] | None:
    """Rank, number of processes and rank on this machine, as torchrun or SLURM say; None for a process of its own."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment.get("LOCAL_RANK", "0"))
    if int(environment.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in environment:
        local = int(environment.get("SLURM_LOCALID", "0"))
        return int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"]), local
    return None


@contextmanager
def joined(timeout: float = TIMEOUT, device: str | None = None) -> Iterator[Group]:
    """The group of all processes that were started together; a group of one where there are no others."""
    import torch
    import torch.distributed as dist

    from farfield.attention.group import Lost, Processes

    rank, size, local = place() or (0, 1, 0)
    cuda = torch.cuda.is_available() if device is None else device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(local % torch.cuda.device_count())
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", "0" if size == 1 else "29500"))
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun has a store there already
    master = rank == 0 and not agent
    try:
        store = dist.TCPStore(host, port, size, master, timedelta(seconds=timeout), wait_for_workers=not agent)
    except RuntimeError as error:
        raise Lost(
            f"process {rank + 1} of {size} did not find all others at {host}:{port} within {timeout:g} s: start them "
            f"together, with the same MASTER_ADDR and MASTER_PORT ({str(error).splitlines()[0]})"
        ) from None
    # what one waits for in an exchange is bounded by the pulse, not by how long another one computes
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(days=1)
    )
    pulse = _Pulse(dist.TCPStore(host, store.port, size, False, timedelta(seconds=timeout)), rank, size, timeout)
    if size > 1 and threading.current_thread() is threading.main_thread():
        # whoever started it wants it to end: it does so as after an error, and removes what is half-written
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(_LOST))
    try:
        yield Processes()
    finally:
        pulse.stop()
        dist.destroy_process_group()


class _Pulse(threading.Thread):
    """Counts for this process, watches the others count, and ends this process if one stops."""

    def __init__(self, store: TCPStore, rank: int, size: int, timeout: float):
        super().__init__(daemon=True)
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._ended = threading.Event()
        if size > 1:
            self.start()

    def stop(self) -> None:
        """This process is done with the group: nobody shall wait for it."""
        self._ended.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        heard = dict.fromkeys(set(range(self._size)) - {self._rank}, (b"", time.monotonic()))
        try:
            while not self._ended.wait(self._timeout / 10):
                self._store.set(f"pulse/{self._rank}", str(time.monotonic()))
                for other, (last, since) in list(heard.items()):
                    found = self._store.get(f"pulse/{other}") if self._store.check([f"pulse/{other}"]) else b""
                    if found == b"done":
                        del heard[other]
                    elif found != last:
                        heard[other] = (found, time.monotonic())
                    elif time.monotonic() - since > self._timeout:
                        self._stop_all(f"process {other + 1} has given no sign of life for {self._timeout:g} s")
            self._store.set(f"pulse/{self._rank}", "done")
        except RuntimeError:  # the store went with the process that had it
            if not self._ended.wait(2.0):  # an exchange says it better, if one is under way
                self._stop_all("the first process is gone")

    def _stop_all(self, why: str) -> None:
        print(f"error: {why}: process {self._rank + 1} of {self._size} stops, nothing was written", file=sys.stderr)
        sys.stderr.flush()
        for undo in list(_UNDO):
            undo()
        os._exit(_LOST)  # the main thread waits inside an exchange, where no exception reaches it


_UNDO: list[Callable[[], None]] = []


@contextmanager
def undoing(undo: Callable[[], None]) -> Iterator[None]:
    """While this lasts, a process that is stopped from outside still calls ``undo``: to remove what is half-written."""
    _UNDO.append(undo)
    try:
        yield
    finally:
        _UNDO.remove(undo)


def launch(command: Sequence[str], devices: int, nodes: int = 1) -> int:
    """Run a command in ``devices`` processes here and wait for all; when one fails the others are ended. Its exit code.

    Of several ``nodes`` each runs this; MASTER_ADDR, MASTER_PORT and NODE_RANK say where they meet.
    """
    environment = dict(os.environ)
    if nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= environment.keys():
        raise ValueError(
            f"{nodes} nodes need MASTER_ADDR, MASTER_PORT and NODE_RANK in the environment of each; under torchrun or "
            "srun give neither --devices nor --nodes"
        )
    environment.setdefault("MASTER_ADDR", "127.0.0.1")
    environment.setdefault("MASTER_PORT", str(_free_port()))
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // devices)))
    first = int(environment.get("NODE_RANK", "0")) * devices
    children = [
        subprocess.Popen(
            list(command),
            env=environment
            | {"RANK": str(first + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(devices * nodes)},
        )
        for local in range(devices)
    ]
    codes: list[int | None] = []
    try:
        while any(child.poll() is None for child in children):
            if any(child.poll() not in (None, 0) for child in children):
                _wait(children, _GRACE)
                break
            time.sleep(0.05)
    finally:
        codes = [child.poll() for child in children]  # of those that ended by themselves
        for child in children:
            child.terminate()
        _wait(children, 5 * _GRACE)
        for child in children:
            child.kill()  # a process that is frozen, or waits for one that is gone
            child.wait()
    for number, code in enumerate(codes, start=first + 1):
        if code is not None and code < 0:
            print(
                f"error: process {number} of {devices * nodes} was ended by {signal.Signals(-code).name}: the others "
                "were ended, too, and nothing was written",
                file=sys.stderr,
            )
            return 128 - code
    ended = [code for code in codes if code]
    return next((code for code in ended if code != _LOST), max(ended, default=0))


def _wait(children: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Until all have ended, but no longer than this."""
    until = time.monotonic() + seconds
    while any(child.poll() is None for child in children) and time.monotonic() < until:
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
