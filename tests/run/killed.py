"""Run by test_killed.py in a process of its own: saves that are killed, forked from here so that each costs nothing.

It is a process of its own because a fork is only safe where nothing has started threads yet.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from passel.arena import Pages
from passel.run.checkpoint import latest, load, save


def groups_of(number: int) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "parameters": {"vector": torch.full((20_000,), float(number)), "count": torch.tensor(number)},
        "memory": {"obs": torch.full((50_000,), number, dtype=torch.int64)},
    }


def pages_of(number: int) -> dict[str, Pages]:
    """Ten pages, of which each number changes one; the others carry the number that changed them last."""
    last = torch.tensor([[number - (number - page) % 10 for page in range(10)]])
    return {"memory/log": Pages(last.repeat_interleave(500, dim=1), last + 11)}


def number_in(folder: Path) -> int:
    """The number that every tensor of the newest checkpoint carries; a broken checkpoint is a failure here."""

    def fail(message: str) -> None:
        raise AssertionError(message)

    found = latest(folder, fail)
    assert found is not None, "no checkpoint survived"
    numbers = {int(x) for group in found.groups.values() for tensor in group.values() for x in tensor.unique()}
    assert numbers == {found.meta["number"]}, numbers
    expected = pages_of(found.meta["number"])["memory/log"]
    pages = {page: content for _, page, content in found.pages()}
    assert pages.keys() == expected.written().keys()
    assert all(torch.equal(content, expected.page(page)) for page, content in pages.items())
    return int(found.meta["number"])


def forked(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def save_number(folder: Path, number: int) -> None:
    """Two saves of each step, so that half of them replace; one is kept, so that there is nothing to fall back on."""
    checkpoints = folder / "checkpoints"
    # What was saved last is the largest number on disk: here nothing ever goes back.
    base = max(checkpoints.glob("[0-9]*"), key=lambda path: int(path.name), default=None)
    save(folder, number // 2, groups_of(number), {"number": number}, keep=1, pages=pages_of(number), base=base)


def killed_at_random(folder: Path, kills: int) -> None:
    dice = random.Random(1)
    save_number(folder, 0)
    number = 0
    for _ in range(kills):
        readable, writable = os.pipe()

        def child(start: int = number, pipe: int = writable) -> None:
            for value in range(start + 1, start + 100_000):
                save_number(folder, value)
                os.write(pipe, value.to_bytes(8, "little"))

        pid = forked(child)
        os.close(writable)
        assert select.select([readable], [], [], 20)[0], "the child saves nothing"
        time.sleep(dice.uniform(0, 0.04))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        done = int.from_bytes(os.read(readable, 1 << 20)[-8:], "little")
        os.close(readable)
        number = number_in(folder)
        assert done <= number <= done + 1, f"save {done} had returned, and {number} was found"
    print(f"random kills: {kills}, saves: {number}")


def killed_at_every_call(folder: Path) -> None:
    """Die before the n-th system call of a save, for every n: nothing is left to luck."""
    names = ("write", "fsync", "rename", "mkdir", "unlink", "rmdir", "link")
    points = 0
    for start in (1, 2):  # 1 to 2 is a new step, 2 to 3 replaces
        for call in range(1, 1000):
            save(folder, start // 2, groups_of(start), {"number": start}, keep=1, pages=pages_of(start))

            def child(start: int = start, call: int = call) -> None:
                left = call

                def dying(real: Callable[..., object]) -> Callable[..., object]:
                    def wrapper(*arguments: object, **keywords: object) -> object:
                        nonlocal left
                        left -= 1
                        if left == 0:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return real(*arguments, **keywords)

                    return wrapper

                for name in names:
                    setattr(os, name, dying(getattr(os, name)))
                save_number(folder, start + 1)

            _, status = os.waitpid(forked(child), 0)
            for named in (folder / "checkpoints").glob("[0-9]*"):
                load(named)  # also those on their way out: a number is never half a checkpoint
            found = number_in(folder)
            assert found in (start, start + 1), found
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0, "the save itself failed"
                assert found == start + 1
                break
            points += 1
    assert points >= 30, points
    print(f"crash points: {points}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for name in ("random", "every"):
        (root / name).mkdir()
    killed_at_every_call(root / "every")
    killed_at_random(root / "random", kills=int(sys.argv[2]))
