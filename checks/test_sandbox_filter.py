"""The sandbox's filter of system calls beside the kernel's headers, and what each wall holds alone."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from evaluation import test_sandbox
from evaluation.test_sandbox import SHORT, run_python, without
from holdfast.evaluation.code import sandbox_child

needs_sandbox, needs_namespaces = test_sandbox.needs_sandbox, test_sandbox.needs_namespaces


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


@pytest.mark.usefixtures("needs_namespaces")
def test_namespaces_alone_cut_the_network_off(monkeypatch):
    without(monkeypatch, "seccomp", "landlock")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        outcome = run_python(
            f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}))", limits=SHORT
        )
        assert outcome.reason == "error" and "unreachable" in outcome.detail
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.usefixtures("needs_sandbox")
def test_landlock_alone_hides_files(monkeypatch, tmp_path):
    without(monkeypatch, "seccomp", "namespaces")
    (tmp_path / "a").write_text("secret")
    for program in (f"open({str(tmp_path / 'a')!r})", f"open({str(tmp_path / 'b')!r}, 'w')", "open('here', 'w')"):
        assert run_python(program, limits=SHORT).detail.startswith("PermissionError: [Errno 13]")


@pytest.mark.usefixtures("needs_sandbox")
def test_the_tests_of_walls_notice_a_missing_one(monkeypatch, tmp_path):
    """Without Landlock a file can be read, and without the filter a process made: so the attacks above can succeed."""
    (tmp_path / "a").write_text("secret")
    without(monkeypatch, "landlock", "seccomp")
    assert run_python(f"assert open({str(tmp_path / 'a')!r}).read() == 'secret'", limits=SHORT).passed
    assert run_python("import os\nif os.fork() == 0: os._exit(0)\nos.wait()", limits=SHORT).passed
