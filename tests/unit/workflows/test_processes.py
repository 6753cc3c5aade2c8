"""Work is shared with other processes; what comes back is what one process would have made, in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from offline_arl.errors import DataError
from offline_arl.workflows.processes import other_processes


def square(number: int) -> tuple[int, int]:
    time.sleep(0.02)
    return number * number, os.getpid()


def echo(data: bytes) -> bytes:
    return data[::-1]


def echo_of_process(data: bytes) -> tuple[bytes, int]:
    return data[::-1], os.getpid()


def grow(number: int) -> bytes:
    return b"x" * (3_000_000 + number)


def filled(number: int) -> np.ndarray:
    return np.full(10_000, number)


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def die_elsewhere(parent: int) -> int:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return parent


def test_the_results_come_in_order_and_from_all_processes() -> None:
    with other_processes(2) as pool:
        found = list(pool.map(square, range(100)))
    assert [(item, result) for item, (result, _) in found] == [(number, number**2) for number in range(100)]
    assert len({process for _, (_, process) in found}) == 3
    assert os.getpid() in {process for _, (_, process) in found}


def test_more_than_a_pipe_holds_goes_both_ways_at_once() -> None:
    items = [bytes([number]) * 5_000_000 + b"end" for number in range(12)]
    with other_processes(2) as pool:
        assert list(pool.map(echo, items)) == [(item, item[::-1]) for item in items]


def test_results_that_are_larger_than_what_was_asked_come_whole() -> None:
    with other_processes(1) as pool:
        assert [len(result) for _, result in pool.map(grow, range(4))] == [3_000_000 + number for number in range(4)]


def test_results_stay_as_they_are_when_their_memory_is_used_again() -> None:
    with other_processes(1) as pool:
        arrays = [result for _, result in pool.map(filled, range(20))]
    assert [set(array.tolist()) for array in arrays] == [{number} for number in range(20)]


def test_no_shared_memory_is_left_behind() -> None:
    before = set(os.listdir("/dev/shm"))
    with other_processes(2) as pool:
        list(pool.map(echo, [b"x" * size for size in (10, 5_000_000, 2_000_000, 9_000_000)] * 3))
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("psm_")} == set()


def test_where_shared_memory_is_full_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=4096))
    with other_processes(1) as pool:
        found = list(pool.map(echo_of_process, [b"short", b"x" * 5_000] * 3))
    assert {process for _, (_, process) in found[1::2]} == {os.getpid()}
    assert [result for _, (result, _) in found] == [b"trohs", b"x" * 5_000] * 3


def test_few_items_are_under_way_at_once() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield number

    with other_processes(1) as pool:
        for done, _ in enumerate(pool.map(square, items())):
            assert taken - done <= 10


def test_the_same_processes_do_several_things() -> None:
    with other_processes(1) as pool:
        assert list(pool.map(echo, [])) == []
        assert list(pool.map(echo, [b"ab"])) == [(b"ab", b"ba")]
        assert [result for _, result in pool.map(fail_at_three, range(3))] == [0, 1, 2]


def test_an_error_comes_out_where_its_result_would_have() -> None:
    with other_processes(2) as pool:
        results = pool.map(fail_at_three, range(20))
        assert [next(results) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
        with pytest.raises(ValueError, match="three"):
            next(results)


def test_a_process_that_is_killed_is_told() -> None:
    with other_processes(1) as pool, pytest.raises(DataError, match="was killed, perhaps for want of memory"):
        list(pool.map(die_elsewhere, [os.getpid()] * 20))


def test_a_script_that_is_not_guarded_is_told_what_to_do(tmp_path: Path) -> None:
    """Where a process starts anew, it runs the script again, and would start processes itself."""
    script = tmp_path / "script.py"
    script.write_text(
        "from offline_arl.workflows.processes import other_processes\n"
        "with other_processes(1) as pool:\n"
        "    print(list(pool.map(len, ['a'] * 9)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .endswith('a script that uses several needs `if __name__ == "__main__":` around what it does')
    )
