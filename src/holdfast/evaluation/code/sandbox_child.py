"""The inside of the sandbox: a fresh Python process that takes every power from itself and then
runs one program (see `sandbox`).

The order matters. Resource limits and namespaces come first, as they need rights that go later;
then no_new_privs, Landlock, empty capability sets, and last the system call filter, after which
nothing can be changed any more. Only then is the program compiled and run.

The filter is a list of what is allowed (seccomp-BPF; see `seccomp(2)`), and anything else fails
with EPERM: no socket, no new process or thread, no other program, no signal to another process, no
tracing, no mounting, no change of owners, modes or times of files, no shared memory. A call through
another architecture's table kills the process. Some calls pass only with harmless arguments
(`_GUARDED`). Which files may be opened is Landlock's part (`landlock(7)`), as a filter cannot
follow pointers to paths.

Needs the standard library only, on Linux, x86_64 or aarch64, and is imported without its package.
Everything goes through ctypes.
"""

from __future__ import annotations

import os
import sys
import types

TYPE_CHECKING = (
    False  # not from `typing`, whose import would take longer than all that is done here
)
if TYPE_CHECKING:
    from typing import Any

_KILL, _REFUSE, _ALLOW = (
    0x80000000,
    0x00050001,
    0x7FFF0000,
)  # SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW
_MACHINES = {
    "x86_64": (0, 0xC000003E),
    "aarch64": (1, 0xC00000B7),
}  # column of the tables below, AUDIT_ARCH_*

# fmt: off
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "poll": (7, None),
    "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "access": (21, None), "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216), "msync": (26, 227),
    "madvise": (28, 233), "dup": (32, 23), "dup2": (33, None), "pause": (34, None), "nanosleep": (35, 101), "getitimer": (36, 102),
    "alarm": (37, None), "setitimer": (38, 103), "getpid": (39, 172), "sendfile": (40, 71), "recvfrom": (45, 207), "shutdown": (48, 210),
    "getsockname": (51, 204), "getsockopt": (55, 209), "exit": (60, 93), "uname": (63, 160), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "getdents": (78, None), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "rename": (82, None),
    "mkdir": (83, None), "rmdir": (84, None), "creat": (85, None), "link": (86, None), "unlink": (87, None), "symlink": (88, None),
    "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179),
    "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177), "getppid": (110, 173),
    "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156), "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "statfs": (137, 43),
    "fstatfs": (138, 44), "getpriority": (140, 141), "gettid": (186, 178), "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123),
    "epoll_create": (213, None), "getdents64": (217, 61), "restart_syscall": (219, 128), "fadvise64": (221, 223), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None), "epoll_ctl": (233, 21),
    "mkdirat": (258, 34), "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38), "linkat": (265, 37), "symlinkat": (266, 36),
    "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73), "epoll_pwait": (281, 22), "eventfd": (284, None),
    "fallocate": (285, 47), "signalfd4": (289, 74), "eventfd2": (290, 19), "epoll_create1": (291, 20), "dup3": (292, 24), "pipe2": (293, 59),
    "getrandom": (318, 278), "getcpu": (309, 168), "statx": (332, 291), "copy_file_range": (326, 285), "renameat2": (316, 276),
    "close_range": (436, 436), "faccessat2": (439, 439), "epoll_pwait2": (441, 441), "setrlimit": (160, 164),
}
# fmt: on
"""Numbers of the calls that pass whatever their arguments, on x86_64 and on aarch64 (None: that
machine has no such call)."""

_Condition = tuple[int, int, int]
"""(byte offset in `struct seccomp_data`, mask, value): the 32 bits there, masked, are the value."""


def _argument(index: int, value: int, mask: int = 0xFFFFFFFF) -> _Condition:
    return (16 + 8 * index, mask, value)


def _guarded(pid: int) -> dict[str, tuple[tuple[int | None, int | None], list[list[_Condition]]]]:
    """Calls that pass when all conditions of one of the alternatives hold."""
    commands = (
        0x5401,
        0x5413,
        0x541B,
        0x5421,
        0x5450,
        0x5451,
    )  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    # not F_SETOWN and F_SETSIG, which send signals to others; F_DUPFD to F_SETLKW, F_DUPFD_CLOEXEC
    controls = (0, 1, 2, 3, 4, 5, 6, 7, 1030)

    def opening(flags: int) -> list[list[_Condition]]:
        # O_RDONLY | O_TRUNC empties a file that may only be read, which Landlock sees from its
        # third version on
        return [[_argument(flags, 0, 0o1000)], [_argument(flags, 1, 3)], [_argument(flags, 2, 3)]]

    return {
        "open": ((2, None), opening(1)),
        "openat": ((257, 56), opening(2)),
        "ioctl": ((16, 29), [[_argument(1, command)] for command in commands]),
        "fcntl": ((72, 25), [[_argument(1, control)] for control in controls]),
        "kill": ((62, 129), [[_argument(0, pid)]]),
        "tgkill": ((234, 131), [[_argument(0, pid)]]),
        "prlimit64": (
            (302, 261),
            [[_argument(0, 0)]],
        ),  # with another pid it would lower the limits of the user's processes
        # what asyncio needs: a connected pair of AF_UNIX, SOCK_STREAM; no address to send to
        "socketpair": ((53, 199), [[_argument(0, 1), _argument(1, 1, 0xF)]]),
        "sendto": ((44, 206), [[_argument(4, 0), (16 + 8 * 4 + 4, 0xFFFFFFFF, 0)]]),
    }


def build_filter(machine: str, pid: int) -> bytes:
    """The system call filter as BPF instructions (`struct sock_filter`, 8 bytes each).

    Args:
        machine: "x86_64" or "aarch64", as `os.uname().machine` says.
        pid: the process that it is for, which may send signals to itself.
    """
    import struct

    def load(offset: int) -> bytes:
        return struct.pack("=HBBI", 0x20, 0, 0, offset)

    def unless_equal(value: int, skip: int) -> bytes:
        return struct.pack("=HBBI", 0x15, 0, skip, value)

    def give(verdict: int) -> bytes:
        return struct.pack("=HBBI", 0x06, 0, 0, verdict)

    column, architecture = _MACHINES[machine]
    code = load(4) + struct.pack("=HBBI", 0x15, 1, 0, architecture) + give(_KILL) + load(0)
    for numbers in _ALLOWED.values():
        if (number := numbers[column]) is not None:
            code += unless_equal(number, 1) + give(_ALLOW)
    for numbers, alternatives in _guarded(pid).values():
        if (number := numbers[column]) is None:
            continue
        block = b""
        for conditions in alternatives:
            for number_of_condition, (offset, mask, value) in enumerate(conditions):
                left = len(conditions) - 1 - number_of_condition
                block += (
                    load(offset)
                    + struct.pack("=HBBI", 0x54, 0, 0, mask)
                    + unless_equal(value, 3 * left + 1)
                )
            block += give(_ALLOW)
        block += give(_REFUSE)
        code += unless_equal(number, len(block) // 8) + block
    return code + give(_REFUSE)


# --------------------------------------------------------------------------------------- the layers


class _Kernel:
    """System calls by way of libc; a failed one is an `OSError`."""

    def __init__(self) -> None:
        import ctypes

        self.ctypes = ctypes
        self.libc = ctypes.CDLL(None, use_errno=True)

    def call(self, name: str, *arguments: Any) -> int:
        result = int(getattr(self.libc, name)(*arguments))
        if result < 0:
            number = self.ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    def prctl(self, option: int, *arguments: Any) -> None:
        full = [
            self.ctypes.c_ulong(a) if isinstance(a, int) else a
            for a in (*arguments, 0, 0, 0, 0)[:4]
        ]
        self.call("prctl", option, *full)

    def syscall(self, number: int, *arguments: Any) -> int:
        return self.call("syscall", self.ctypes.c_long(number), *arguments)


def _limit_resources(limits: dict[str, int]) -> None:
    import resource

    cpu = limits["cpu_seconds"]
    for which, soft, hard in (
        (
            resource.RLIMIT_CPU,
            cpu,
            cpu + 1,
        ),  # SIGXCPU, and a second later SIGKILL where that is ignored
        (resource.RLIMIT_AS, limits["memory_bytes"], limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        most = resource.getrlimit(which)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(which, (soft, hard))


def _enter_namespaces(kernel: _Kernel, folder: str, disk_bytes: int) -> None:
    """New user, network, IPC, host name and mount namespaces; `folder` becomes a file system in
    memory of `disk_bytes`, gone with the process."""
    user, group = os.geteuid(), os.getegid()
    kernel.call("unshare", 0x10000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x00020000)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        file = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(file, text.encode())
        os.close(file)
    options = f"size={max(disk_bytes, 4096)},nr_inodes=1000,mode=700"
    # MS_NOSUID, MS_NODEV, MS_NOEXEC
    kernel.call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 2 | 4 | 8, options.encode())
    os.chdir(folder)  # what is mounted there is seen only by those who come in again


_READ, _WRITE = 1 << 2 | 1 << 3, 1 << 1  # LANDLOCK_ACCESS_FS_READ_FILE and _READ_DIR, _WRITE_FILE
_FILE_ONLY = 1 << 1 | 1 << 2 | 1 << 14  # what may be granted on something that is no folder
# LANDLOCK_ACCESS_FS_REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SYM (what a link leads to has
# rules of its own), REFER, TRUNCATE
_OWN_FOLDER = _READ | _WRITE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | 1 << 14


def readable_paths() -> list[str]:
    """What Python needs to import its library: the standard library, shared libraries, time zones,
    and a few devices."""
    library = [*sys.path, *(os.path.join(sys.base_prefix, name) for name in ("lib", "lib64"))]
    system = [
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/share/zoneinfo",
        "/etc/localtime",
        "/etc/ld.so.cache",
    ]
    return [
        path
        for path in (*library, *system, "/dev/zero", "/dev/random", "/dev/urandom")
        if os.path.exists(path)
    ]


def _restrict_files(kernel: _Kernel, *, writable: bool) -> None:
    """Landlock: reads `readable_paths`, writes below the current folder if `writable`; no TCP, no
    signals and no abstract sockets outside."""
    import struct

    version = kernel.syscall(444, None, kernel.ctypes.c_size_t(0), 1)
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    attributes = struct.pack(
        "=QQQ", files, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0
    )
    attributes = attributes[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = kernel.syscall(444, attributes, kernel.ctypes.c_size_t(len(attributes)), 0)

    def grant(path: str, rights: int) -> None:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights &= files if os.path.isdir(path) else files & _FILE_ONLY
        kernel.syscall(445, rules, 1, struct.pack("=Qi", rights, handle), 0)
        os.close(handle)

    for path in readable_paths():
        grant(path, _READ)
    grant("/dev/null", _READ | _WRITE)
    if writable:
        grant(".", _OWN_FOLDER)
    kernel.syscall(446, rules, 0)
    os.close(rules)


def _drop_capabilities(kernel: _Kernel) -> None:
    import struct

    # _LINUX_CAPABILITY_VERSION_3, this process: nothing
    kernel.call("capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))


def _install_filter(kernel: _Kernel) -> None:
    import struct

    code = build_filter(os.uname().machine, os.getpid())
    buffer = kernel.ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, kernel.ctypes.addressof(buffer))
    kernel.prctl(22, 2, kernel.ctypes.c_char_p(program))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def enter(request: dict[str, Any], *, probing: bool = False) -> list[str]:
    """Takes from this process what the program must not have.

    Args:
        request: see `write_request`.
        probing: leave out a layer that this machine refuses; else it is an error.

    Returns:
        The layers that were set up, of those in `request["layers"]`.
    """
    kernel, layers = _Kernel(), []

    def attempt(layer: str, set_up: Any) -> None:
        if layer not in request["layers"]:
            return
        try:
            set_up()
            layers.append(layer)
        except (OSError, AttributeError, KeyError):
            if not probing:
                raise

    _limit_resources(request)
    os.chdir(request["folder"])
    attempt(
        "namespaces", lambda: _enter_namespaces(kernel, request["folder"], request["disk_bytes"])
    )
    kernel.prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    attempt(
        "landlock",
        lambda: _restrict_files(
            kernel, writable="namespaces" in layers and request["disk_bytes"] > 0
        ),
    )
    _drop_capabilities(kernel)
    # PR_SET_DUMPABLE: no core dump, not even through a pipe, which RLIMIT_CORE does not stop
    kernel.prctl(4, 0)
    kernel.prctl(1, 9)  # PR_SET_PDEATHSIG: SIGKILL when the thread that started this process ends
    if os.getppid() != request["parent"]:
        os._exit(1)  # it ended before the line above
    attempt("seccomp", lambda: _install_filter(kernel))
    return layers


def _probe(layers: list[str]) -> list[str]:
    """The layers that do what they should: what must be refused is tried."""
    import socket

    def refused(action: Any) -> bool:
        try:
            action()
        except PermissionError:
            return True
        return False

    tests = {
        "landlock": lambda: (
            refused(lambda: os.listdir("/"))
            and refused(lambda: os.open("/landlock", os.O_CREAT | os.O_WRONLY))
        ),
        "seccomp": lambda: refused(socket.socket) and refused(os.fork),
    }
    return [layer for layer in layers if tests.get(layer, lambda: True)()]


# -------------------------------------------------------------------------------------- the program


def write_request(
    *,
    program: str | None,
    folder: str,
    layers: list[str],
    limits: dict[str, int],
    parent: int,
    token: str,
    report: int,
) -> bytes:
    """What `main` reads from stdin: `name=value` lines, an empty line, and the program. No JSON,
    whose import would take longer than the rest.

    Args:
        program: its text; None: probe the layers.
        folder: an empty folder of its own.
        layers: those to set up.
        limits: the fields of `sandbox.Limits`.
        parent: process id of the caller.
        token: what stands before every message.
        report: file descriptor of the pipe for them.
    """
    fields = {
        "folder": os.fsencode(folder).hex(),
        "layers": ",".join(layers),
        "parent": parent,
        "token": token,
        "report": report,
    }
    lines = [
        f"{name}={value}"
        for name, value in {**fields, **limits, "probe": int(program is None)}.items()
    ]
    return "\n".join(lines).encode() + b"\n\n" + (program or "").encode("utf-8", "surrogatepass")


def _read_request() -> tuple[dict[str, Any], str]:
    with open(0, "rb", closefd=False) as file:
        head, _, program = file.read().partition(b"\n\n")
    fields = dict(line.split("=", 1) for line in head.decode().split("\n"))
    request: dict[str, Any] = {
        "folder": os.fsdecode(bytes.fromhex(fields.pop("folder"))),
        "layers": fields.pop("layers").split(","),
    }
    request |= {"token": fields.pop("token").encode()} | {
        name: int(value) for name, value in fields.items()
    }
    return request, program.decode("utf-8", "surrogatepass")


def main() -> None:
    """Enters the sandbox and runs one program; ends the process.

    What comes of it is written to a pipe, every message behind the run's token: "started", then a
    reason (see `sandbox.REASONS`) and a detail.
    """
    request, program = _read_request()
    token, report = request.pop("token"), request.pop("report")
    write, leave = os.write, os._exit  # the program may replace them

    def say(word: str, detail: str = "") -> None:
        write(report, token + f" {word}\n{detail}\n".encode("utf-8", "replace"))

    no_memory = token + b" out of memory\n\n"  # made now, when there is some
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        layers = enter(request, probing=bool(request["probe"]))
    except Exception as error:
        say("not set up", f"{type(error).__name__}: {error}")
        leave(1)
    if request["probe"]:
        say("probed", " ".join(_probe(layers)))
        leave(0)
    say("started")
    try:
        reason, detail = run(program)
        say(reason, detail)
    except MemoryError:
        write(report, no_memory)
    leave(0)


def run(program: str) -> tuple[str, str]:
    """Runs a program in a module of its own, which is not `__main__`, and says how it ended: reason
    and detail."""
    module = types.ModuleType("program")
    sys.modules["program"] = module  # dataclasses and pickle look their module up
    try:
        exec(compile(program, "<program>", "exec", dont_inherit=True), module.__dict__)
    except MemoryError as error:
        error.__traceback__ = None  # its frames hold what filled the memory
        return "out of memory", "MemoryError"
    except SystemExit as error:
        return "exited early", f"SystemExit: {error.code!s:.100}"
    except BaseException as error:
        return _reason(error), _describe(error, program)
    return "passed", ""


def _reason(error: BaseException) -> str:
    import errno

    if isinstance(error, AssertionError):
        return "failed"
    # EPERM from the filter, EACCES from Landlock, the others from limits
    walls = (
        errno.EPERM,
        errno.EACCES,
        errno.EROFS,
        errno.EFBIG,
        errno.ENOSPC,
        errno.EMFILE,
        errno.EXDEV,
    )
    if (isinstance(error, OSError) and error.errno in walls) or (
        isinstance(error, RuntimeError) and "start new thread" in str(error)
    ):
        return "stopped by the sandbox"
    return "error"


def _describe(error: BaseException, program: str) -> str:
    """Name, last line of the message, and the line of the program that it came from."""
    try:
        message = str(error).strip().splitlines()
    except Exception:  # the program's own exception class
        message = []
    text = f"{type(error).__name__}: {message[-1]:.120}" if message else type(error).__name__
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<program>":
            line = trace.tb_lineno
        trace = trace.tb_next
    lines = program.split("\n")
    return (
        text
        if line is None or line > len(lines)
        else f"{text} (line {line}: {lines[line - 1].strip():.80})"
    )
