"""The sandbox's filter of system calls: its numbers beside the kernel's headers, and its verdicts on both machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.evaluation.code import sandbox_child


@pytest.mark.parametrize(
    ("column", "header", "pattern"),
    [
        (0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
        (1, "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)"),
    ],
)
def test_the_numbers_are_those_of_the_kernel(column, header, pattern):
    if not Path(header).is_file():
        pytest.skip("needs the kernel's headers")
    known = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    table = {**sandbox_child._ALLOWED, **{name: numbers for name, (numbers, _) in sandbox_child._guarded(1).items()}}
    assert len(table) > 100
    assert {name: numbers[column] for name, numbers in table.items()} == {name: known.get(name) for name in table}


def run_filter(code: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel's machine would answer: the instructions that are used, step by step."""
    import struct

    data = struct.pack("=iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    place = value = 0
    while True:
        operation, yes, no, constant = struct.unpack_from("=HBBI", code, 8 * place)
        place += 1
        if operation == 0x20:
            value = struct.unpack_from("=I", data, constant)[0]
        elif operation == 0x54:
            value &= constant
        elif operation == 0x15:
            place += yes if value == constant else no
        else:
            assert operation == 0x06
            return constant


@pytest.mark.parametrize(("machine", "architecture", "column"), [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)])
def test_the_filter_on_both_machines(machine, architecture, column):
    code = sandbox_child.build_filter(machine, 4711)
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    guarded = {name: numbers[column] for name, (numbers, _) in sandbox_child._guarded(1).items()}
    allowed = {numbers[column] for numbers in sandbox_child._ALLOWED.values()} - {None}
    for number in range(600):
        if number not in guarded.values():
            assert run_filter(code, architecture, number) == (allow if number in allowed else refuse), number
    assert run_filter(code, 0x40000003, 20) == kill
    for name, arguments, verdict in [
        ("kill", (4711, 9), allow),
        ("kill", (4712, 9), refuse),
        ("kill", (0xFFFFFFFF, 9), refuse),
        ("tgkill", (4711, 4711, 9), allow),
        ("tgkill", (1, 4711, 9), refuse),
        ("prlimit64", (0, 0), allow),
        ("prlimit64", (4711, 0), refuse),
        ("socketpair", (1, 1 | 0o2000000), allow),
        ("socketpair", (1, 2), refuse),
        ("socketpair", (2, 1), refuse),
        ("sendto", (5, 6, 7, 0, 0, 0), allow),
        ("sendto", (5, 6, 7, 0, 1, 0), refuse),
        ("sendto", (5, 6, 7, 0, 1 << 32, 0), refuse),
        ("openat", (3, 4, 0), allow),
        ("openat", (3, 4, 0o1101), allow),
        ("openat", (3, 4, 0o1002), allow),
        ("openat", (3, 4, 0o1000), refuse),
        ("openat", (3, 4, 0o1003), refuse),
        ("fcntl", (3, 8), refuse),
        ("fcntl", (3, 1030), allow),
        ("ioctl", (0, 0x5401), allow),
        ("ioctl", (0, 0x5412), refuse),
    ]:
        assert run_filter(code, architecture, guarded[name], arguments) == verdict, (name, arguments)
