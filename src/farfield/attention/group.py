"""The members of a group that share one domain: processes of ``torch.distributed``, or parts that take turns in one.

A group can do three things, each of them together: exchange rows of tensors, gather small values, find a maximum. All
members call the same things in the same order. :class:`Processes` does them over gloo, NCCL or whatever the process
group speaks; :class:`InTurn` runs the members of one process one after the other, each until it waits for the others,
with what waits kept on disk: a domain larger than memory then needs the memory of one part.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Group(ABC):
    """One member's view of its group: ``rank`` of ``size``."""

    rank: int
    size: int
    in_turn = False  # whether members share one memory, which each should leave to the others while it waits
    overlaps = False  # whether an exchange that was begun goes on while this member computes

    @abstractmethod
    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Rows (sum(send), C), the first ``send[0]`` for member 0 and so on -> what all have sent here, in order."""

    def begin_exchange(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> tuple[Tensor, Callable[[], None]]:
        """:meth:`exchange` that is under way: what it fills, and what waits until it has."""
        return self.exchange(rows, send, receive), lambda: None

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """A small value of every member, in order."""

    @abstractmethod
    def maximum(self, values: Tensor) -> Tensor:
        """The largest of each number over all members."""

    def set_aside(self, *tensors: Tensor) -> None:
        """Tensors that this member will not touch while it waits: a group in turn may put them on disk meanwhile."""
        return

    def agree(self, what: str, value: Any) -> None:
        """Refuse a group whose members differ in ``value``; every member says so."""
        values = self.gather(value)
        if other := next((r for r, v in enumerate(values) if v != values[0]), None):
            raise ValueError(
                f"all {self.size} members of a group must have the same {what}: member 1 has {values[0]}, member "
                f"{other + 1} has {values[other]}. Start all of them with the same model, options and input"
            )


class Lost(RuntimeError):
    """Another member of the group is gone."""


class Processes(Group):
    """A process group of ``torch.distributed``, the default one unless given."""

    overlaps = True

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not dist.is_initialized():
            raise ValueError(
                "a group of processes needs torch.distributed.init_process_group first; farfield.processes.join does it"
            )
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        out, finish = self.begin_exchange(rows, send, receive)
        finish()
        return out

    def begin_exchange(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> tuple[Tensor, Callable[[], None]]:
        rows = rows.contiguous()
        out = rows.new_empty((sum(receive), *rows.shape[1:]))
        if rows.shape[1:].numel() == 0:
            return out, lambda: None
        there, here = (
            t.view(len(t), rows.shape[1:].numel()).view(torch.uint8) for t in (rows, out)
        )  # bytes: every backend knows them
        counts = (list(receive), list(send))
        work = self._said(lambda: dist.all_to_all_single(here, there, *counts, group=self._group, async_op=True))
        return out, lambda: self._said(work.wait)

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        self._said(lambda: dist.all_gather_object(values, value, group=self._group))
        return values

    def maximum(self, values: Tensor) -> Tensor:
        values = values.clone()
        self._said(lambda: dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group))
        return values

    def _said(self, together: Callable[[], Any]) -> Any:
        try:
            return together()
        except RuntimeError as error:
            raise Lost(
                f"process {self.rank + 1} of {self.size} has lost another process of its group, so it stops and "
                f"writes nothing; see what that one said last ({_in_short(error)})"
            ) from None


def _in_short(error: RuntimeError) -> str:
    """What gloo or NCCL say, without the place in their sources and their advice."""
    return re.sub(r"^\[[^\]]*\] ", "", str(error).splitlines()[0]).split(". ")[0]


class InTurn:
    """Runs the members of a group one after the other in this process, each in a thread that waits for its turn."""

    def __init__(self, size: int, folder: str | Path | None = None):
        """``folder`` is where tensors wait while other members work; None leaves them in memory."""
        if size < 1:
            raise ValueError(f"a domain has at least one part, got {size}")
        self.size, self.folder = size, None if folder is None else Path(folder)
        self._turn = 0
        self._change = threading.Condition()
        self.said: dict[tuple[int, int], list[Any]] = {}  # by (round, member)
        self.finished: set[int] = set()
        self.failure: BaseException | None = None

    def run(self, work: Callable[[Group], T]) -> list[T]:
        """What ``work`` returns for each member, in order. The first error of any of them is raised."""
        results: list[Any] = [None] * self.size
        if self.folder is not None:
            _give_memory_back()
        threads = torch.get_num_threads()
        kind = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
        autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        grad = torch.is_grad_enabled()

        def member(rank: int) -> None:
            self.wait_for(rank)
            try:
                torch.set_num_threads(threads)  # a thread of its own begins with the machine's number
                with torch.set_grad_enabled(grad), autocast:
                    results[rank] = work(_Member(self, rank))
            except BaseException as error:
                self.failure = self.failure or error
            finally:
                self.finished.add(rank)
                self.pass_on(rank)

        workers = [threading.Thread(target=member, args=(rank,), daemon=True) for rank in range(self.size)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.failure is not None:
            raise self.failure
        return results

    def wait_for(self, rank: int) -> None:
        with self._change:
            self._change.wait_for(lambda: self._turn == rank)

    def pass_on(self, rank: int) -> None:
        with self._change:
            others = (r % self.size for r in range(rank + 1, rank + 1 + self.size))
            self._turn = next((r for r in others if r not in self.finished), rank)
            self._change.notify_all()


class _Member(Group):
    """A member of :class:`InTurn`. In each round everyone speaks, then everyone listens, in the order of ranks."""

    in_turn = True

    def __init__(self, turns: InTurn, rank: int):
        self.rank, self.size, self._turns = rank, turns.size, turns
        self._round = 0
        self._aside: list[weakref.ref[Tensor]] = []

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        said = [self._kept(part, f"to{r}") for r, part in enumerate(rows.split(list(send)))]
        return torch.cat(self._meet(said, self._taken))

    def gather(self, value: Any) -> list[Any]:
        return self._meet([value], lambda said: said[0])

    def maximum(self, values: Tensor) -> Tensor:
        return torch.stack(self.gather(values)).amax(0)

    def set_aside(self, *tensors: Tensor) -> None:
        if self._turns.folder is not None and not torch.is_grad_enabled():
            self._aside += [weakref.ref(t) for t in tensors]

    def _meet(self, said: list[Any], take: Callable[[list[Any]], T]) -> list[T]:
        """Say something, let all others do the same, and take what is meant for this one."""
        turns, number = self._turns, self._round
        self._round += 1
        turns.said[number, self.rank] = said
        waiting = self._put_aside()
        turns.pass_on(self.rank)
        turns.wait_for(self.rank)
        if any((number, r) not in turns.said for r in range(self.size)):
            raise Lost("another part of the domain has failed") from turns.failure
        for storage, path in waiting:
            _read(path, storage)
        heard = [take(turns.said[number, r]) for r in range(self.size)]
        if self.rank == self.size - 1:  # the last to listen
            for r in range(self.size):
                del turns.said[number, r]
        return heard

    def _kept(self, rows: Tensor, name: str) -> Tensor | tuple[Path, Tensor]:
        """Rows for another member: as they are, or in a file, with an empty tensor that tells what they were."""
        folder = self._turns.folder
        if folder is None or rows.numel() == 0:
            return rows
        path = folder / f"{self.rank}-{self._round}-{name}"
        own = rows.contiguous().clone()  # a storage that holds nothing else
        _write(path, own.untyped_storage())
        return path, own

    def _taken(self, said: list[Any]) -> Tensor:
        """This member's rows of what another has said, which lets go of them."""
        mine, said[self.rank] = said[self.rank], None
        if isinstance(mine, Tensor):
            return mine
        path, rows = mine
        _read(path, rows.untyped_storage())
        return rows

    def _put_aside(self) -> list[tuple[torch.UntypedStorage, Path]]:
        """Write what is set aside, and still in use, to disk."""
        alive = [tensor for ref in self._aside if (tensor := ref()) is not None]
        self._aside = [weakref.ref(tensor) for tensor in alive]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in alive if t.numel()}
        waiting = []
        for number, storage in enumerate(storages.values()):
            if storage.resizable() and storage.device.type == "cpu":
                assert self._turns.folder is not None
                path = self._turns.folder / f"{self.rank}-aside{number}"
                _write(path, storage)
                waiting.append((storage, path))
        return waiting


def _give_memory_back() -> None:
    """Let the C library return what is freed at once: it keeps some for every thread, and each member is one."""
    with contextlib.suppress(OSError, AttributeError):  # glibc's; others have their own ways
        library = ctypes.CDLL(None)
        library.mallopt(-8, 1)  # M_ARENA_MAX: one store for all threads
        library.mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: tensors of a megabyte are not kept in it


def _write(path: Path, storage: torch.UntypedStorage) -> None:
    """Move a tensor's numbers to a file; the tensor stays, without memory, until they are read back."""
    with path.open("wb") as file:
        file.write(_memory(storage))
    storage.resize_(0)


def _read(path: Path, storage: torch.UntypedStorage) -> None:
    storage.resize_(path.stat().st_size)
    with path.open("rb") as file:
        file.readinto(_memory(storage))
    path.unlink()


def _memory(storage: torch.UntypedStorage) -> ctypes.Array:
    """The bytes of a storage where they are; a NumPy view would forbid to resize it."""
    return (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
