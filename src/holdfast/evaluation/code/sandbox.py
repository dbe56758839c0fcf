"""Runs Python that a model wrote, where it can do no harm: Linux only, without rights of root, and
not at all where a wall is missing.

Every program gets a fresh interpreter with an empty environment (`python -P -s -S`, hash seed 0, so
that equal programs end alike) that takes its powers from itself before the program is compiled
(`sandbox_child`):

| wall | what it stops |
|---|---|
| seccomp filter, a list of allowed calls | network, processes and threads (so fork bombs), other programs, signals to
others, tracing, file modes |
| Landlock | reading anything but Python's own library and the system's, writing anything but its own folder; /proc |
| namespaces | the network, IPC and mounts once more, and its own folder is a small file system in memory that goes with
the process |
| resource limits | processor time, memory, size of files, open files; no core dumps |
| no_new_privs, no capabilities | gaining rights, also where holdfast runs as root |
| from outside | wall clock (SIGKILL), output read and thrown away beyond a cap, stdin and stdout closed, killed if the
caller dies |

seccomp and Landlock (Linux 5.13, on x86_64 or aarch64) are needed; `capabilities` tries them.
Namespaces may be missing, as where a container or AppArmor refuses them: then a program cannot
write files at all, and the rest holds. RLIMIT_NPROC is not used: it counts all processes of a user,
not those of a program, and does not hold for root; no process is ever started, by the filter.

A program has passed when its last line was reached. Ending early, by `sys.exit` or `os._exit`, is
no pass: the child must say a token, new for every run, after the last line. What remains possible:
the tests run in the same interpreter as the code they test, so code that sets out to cheat can (an
object that equals everything; or the token, found in the frames below). Code written to solve a
problem does not. A program can also see whether a path exists, and its size, though not what is in
it; and it competes for the processor and for caches. The kernel itself is trusted.

Execution of samples and its reasons: Chen et al. 2021, "Evaluating Large Language Models Trained on
Code", section 2.3.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import platform
import py_compile
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields

from holdfast.errors import ConfigError, HoldfastError
from holdfast.evaluation.code import sandbox_child
from holdfast.support.leftovers import scratch_folder

REASONS: dict[str, str] = {
    "passed": "the last line was reached",
    "failed": "an assertion did not hold",
    "error": "another exception, or code that cannot be parsed",
    "exited early": "the process ended before the last line, by sys.exit or os._exit",
    "crashed": "a signal ended the interpreter, for example after a stack overflow in C",
    "timed out": "processor time or wall clock ran out",
    "out of memory": "MemoryError, or killed because memory ran out",
    "stopped by the sandbox": (
        "ended by an error because the sandbox refused what the program tried: opening a file, "
        "using the network, starting another process, or writing a larger file"
    ),
}
"""Every `Outcome.reason`, and when it is given."""

_REPORT_BYTES = 1 << 16
_DETAIL = 240


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use. The defaults are ample for HumanEval and MBPP."""

    cpu_seconds: int = 3
    """Processor time, the interpreter's start (a few hundredths) included; the same on a busy
    machine, other than the wall clock."""
    wall_seconds: float = 15.0
    """Time on the clock, for programs that wait."""
    memory_bytes: int = 1 << 30
    """Address space (RLIMIT_AS), Python's own 30 MB included."""
    file_bytes: int = 4 << 20
    """Largest file."""
    disk_bytes: int = 16 << 20
    """All files of its folder together, in memory; 0: it can write none."""
    open_files: int = 64
    output_bytes: int = 1 << 16
    """Bytes of stderr that are kept, the last ones. Stdout goes nowhere."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one program ended."""

    passed: bool
    reason: str
    """A key of `REASONS`."""
    seconds: float
    """On the clock, from the start of the process."""
    detail: str = ""
    """The exception with its line of the program, or the last line of stderr: one printable line of
    at most 240 characters."""


# ------------------------------------------------------------------------------- what there is here


def capabilities() -> dict[str, bool]:
    """Which walls stand on this machine, tried once a process.

    Returns:
        `linux` (on x86_64 or aarch64), `seccomp` and `landlock`, all needed to run anything;
        `namespaces`, needed by programs that write files.
    """
    layers = _layers()
    walls = {name: name in layers for name in ("seccomp", "landlock", "namespaces")}
    return {"linux": _is_known_linux(), **walls}


def require_sandbox() -> None:
    """Checks that programs can be run here.

    Raises:
        ConfigError: a wall is missing; the message names it.
    """
    missing = [
        name for name, stands in capabilities().items() if not stands and name != "namespaces"
    ]
    if missing:
        why = _probed()[1]
        machine = f"{platform.system()} {platform.release()} on {platform.machine()}"
        reason = f" ({why})" if why else ""
        raise ConfigError(
            "Code written by a model runs only in a sandbox. Expected Linux 5.13 or newer on "
            f"x86_64 or aarch64 with seccomp and Landlock, got {machine} without "
            f"{' and '.join(missing)}{reason}. Run these tasks on another machine, or take them "
            "out of the evaluation. A container may need permission for both."
        )


def _is_known_linux() -> bool:
    return (
        sys.platform == "linux"
        and platform.machine() in ("x86_64", "aarch64")
        and sys.maxsize > 1 << 32
    )


def _layers() -> frozenset[str]:
    return _probed()[0]


@functools.cache
def _probed() -> tuple[frozenset[str], str]:
    """The layers that hold here, and why there are none where the child could not even try them."""
    if not _is_known_linux():
        return frozenset(), ""
    try:
        with _workplace() as folder:
            run = _Run(None, Limits(), frozenset(("namespaces", "landlock", "seccomp")), folder)
            run.start()
            run.wait()
    except OSError as error:
        return frozenset(), str(error)
    messages = run.messages()
    if not messages:
        return frozenset(), run.last_line() or f"the child process ended with exit code {run.code}"
    word, detail = messages[0]
    return (frozenset(detail.split()), "") if word == "probed" else (frozenset(), one_line(detail))


@contextlib.contextmanager
def _workplace() -> Iterator[str]:
    """A temporary folder with the child's module, compiled once for all runs (which may take as
    long as a run)."""
    with scratch_folder(None, "holdfast-sandbox-") as scratch:
        folder = str(scratch)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(
            sandbox_child.__file__,
            cfile=os.path.join(folder, "sandbox_child.pyc"),
            doraise=True,
            invalidation_mode=unchecked,
        )
        yield folder


def _bootstrap(place: str) -> str:
    """What the interpreter runs: `main` of the child's module, without the package around it."""
    return (
        f"import sys;sys.path.append({place!r});import sandbox_child as c;sys.path.pop();del "
        f"sys.modules['sandbox_child'];c.main()"
    )


# -------------------------------------------------------------------------------------- running one


class _Run:
    """One child, from its start to what came of it. `kill` may come from another thread at any
    time."""

    def __init__(
        self, program: str | None, limits: Limits, layers: frozenset[str], place: str
    ) -> None:
        self.program, self.limits, self.layers, self.place = program, limits, layers, place
        self.token = secrets.token_hex(16).encode()
        self.report = self.errors = b""
        self.expired = self.killed = False
        self.code, self.cpu, self.seconds = 0, 0.0, 0.0
        self._lock = threading.Lock()
        self._handle: int | None = None
        self._cleanup = contextlib.ExitStack()

    def start(self) -> None:
        """Starts the child; `wait` must follow."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(dir=self.place, ignore_cleanup_errors=True)
            )
            self._report, report_in = os.pipe()
            stack.callback(os.close, self._report)
            self._errors, errors_in = os.pipe()
            stack.callback(os.close, self._errors)
            for end in (
                self._report,
                self._errors,
            ):  # never wait for a pipe that a fork of the caller's may hold open
                os.set_blocking(end, False)
            content = sandbox_child.write_request(
                program=self.program,
                folder=folder,
                layers=sorted(self.layers),
                limits={
                    f.name: math.ceil(getattr(self.limits, f.name)) for f in fields(self.limits)
                },
                parent=os.getpid(),
                token=self.token.decode(),
                report=report_in,
            )
            request = os.memfd_create("holdfast-sandbox")
            try:
                with open(request, "wb", closefd=False) as file:
                    file.write(content)
                os.lseek(request, 0, os.SEEK_SET)
                self._began = time.monotonic()
                # -P, -s and an empty environment are what -I does, and leave PYTHONHASHSEED
                command = [
                    sys.executable,
                    "-P",
                    "-s",
                    "-S",
                    "-B",
                    "-X",
                    "utf8",
                    "-c",
                    _bootstrap(self.place),
                ]
                self._process = subprocess.Popen(
                    command,
                    stdin=request,
                    stdout=subprocess.DEVNULL,
                    stderr=errors_in,
                    pass_fds=(report_in,),
                    cwd=folder,
                    env={"PYTHONHASHSEED": "0"},
                    start_new_session=True,
                )
                stack.callback(self._end)
                with self._lock:
                    self._handle = os.pidfd_open(self._process.pid)
                    if self.killed:
                        signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            finally:
                for end in (request, report_in, errors_in):
                    os.close(end)
            self._cleanup = stack.pop_all()

    def kill(self) -> None:
        """Ends the child, or stops it at its start. It is one process: nothing that it could start
        would be left."""
        with self._lock:
            self.killed = True
            if self._handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        """Reads what the child says until it has ended, at the latest when its time is up."""
        with self._cleanup:
            try:
                self._listen()
            finally:
                self._end()
            while self._read(self._report) or self._read(self._errors):  # what is left in the pipes
                pass

    def _end(self) -> None:
        """Kills the child if it lives, and takes leave of it; a second time it does nothing."""
        if self._process.returncode is not None:
            return
        # not Popen.kill, which would take its exit status
        os.kill(self._process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self._process.pid, 0)
        self.seconds = time.monotonic() - self._began
        self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu = usage.ru_utime + usage.ru_stime
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _listen(self) -> None:
        assert self._handle is not None
        with selectors.DefaultSelector() as selector:
            for source in (self._handle, self._report, self._errors):
                selector.register(source, selectors.EVENT_READ)
            while True:
                left = self._began + self.limits.wall_seconds - time.monotonic()
                ready = {key.fd for key, _ in selector.select(max(left, 0.0))}
                if self._handle in ready:
                    return
                if left <= 0:
                    self.expired = True
                    return
                for source in ready:
                    if not self._read(source):
                        selector.unregister(source)

    def _read(self, source: int) -> bool:
        try:
            chunk = os.read(source, 1 << 16)
        except BlockingIOError:
            return False
        if source == self._report:
            self.report += chunk[: _REPORT_BYTES - len(self.report)]
        else:
            keep = self.limits.output_bytes
            self.errors = (self.errors + chunk)[-keep:] if keep else b""
        return bool(chunk)

    def messages(self) -> list[tuple[str, str]]:
        """What the child said behind its token: (word, detail); whatever else is in the pipe, the
        program wrote."""
        lines = self.report.split(b"\n")
        start = self.token + b" "
        messages = []
        for line, following in itertools.pairwise(lines):
            if line.startswith(start):
                word = line.removeprefix(start).decode("utf-8", "replace")
                messages.append((word, following.decode("utf-8", "replace")))
        return messages

    def last_line(self) -> str:
        """The last line of stderr."""
        return one_line(self.errors.decode("utf-8", "replace").strip().rpartition("\n")[2])

    def outcome(self) -> Outcome:
        """What came of the program.

        Raises:
            HoldfastError: the sandbox could not be set up, so the program was not run.
        """
        messages = self.messages()
        last_line = self.last_line()
        words = [word for word, _ in messages]
        if words[:1] != ["started"] and not self.expired and self.cpu < self.limits.cpu_seconds:
            why = one_line(messages[0][1]) if messages else last_line or f"exit code {self.code}"
            raise HoldfastError(
                f"Expected a sandbox for a program, but it could not be set up: {why}. The program "
                "was not run. Run these tasks on another machine."
            )
        reason, detail = self._verdict(messages, last_line)
        return Outcome(
            passed=reason == "passed", reason=reason, seconds=self.seconds, detail=detail
        )

    def _verdict(self, messages: Sequence[tuple[str, str]], last_line: str) -> tuple[str, str]:
        if len(messages) == 2 and messages[1][0] in REASONS and self.code == 0:
            return messages[1][0], one_line(messages[1][1])
        if self.expired:
            return "timed out", f"{self.limits.wall_seconds:g} s of wall-clock time"
        if self.code == -signal.SIGXCPU or (
            self.code == -signal.SIGKILL and self.cpu >= self.limits.cpu_seconds
        ):
            return "timed out", f"{self.limits.cpu_seconds} s of processor time"
        if self.code == -signal.SIGKILL or last_line.startswith("MemoryError"):
            return "out of memory", last_line or "killed by the system"
        if self.code < 0:
            return "crashed", last_line or signal.strsignal(-self.code) or f"signal {-self.code}"
        return "exited early", last_line or f"exit code {self.code}"


def one_line(text: str, *, most: int = _DETAIL) -> str:
    """The text in one printable line of at most `most` characters: what a program says may hold
    escape codes and line breaks."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in text.strip()[: 4 * most])
    return text if len(text) <= most else text[: most - 1] + "…"


def run_all(
    programs: Iterable[str],
    *,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Runs programs side by side. Ctrl-C, and any error, ends all of them before it goes on to the
    caller.

    Args:
        programs: Python sources, tests included. Each runs as a module, not as `__main__`, with the
            standard library only, and has passed when its last line was reached.
        limits: of each of them.
        workers: programs at a time; None: as many as there are cores for this process.
        progress: called with (programs done, programs in all) as they end.

    Returns:
        Outcomes in the order of the programs.

    Raises:
        ConfigError: this machine lacks a wall that is needed (see `capabilities`); nothing was run.
        HoldfastError: the sandbox could not be set up.
    """
    programs = list(programs)
    require_sandbox()
    chosen, layers = limits or Limits(), _layers()
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(_workplace())
        except OSError as error:
            raise HoldfastError(
                f"Expected a temporary folder for the programs, but: {error}. Free some space, or "
                "set TMPDIR to another folder."
            ) from error
        runs = [_Run(program, chosen, layers, folder) for program in programs]
        return _run_side_by_side(runs, workers or len(os.sched_getaffinity(0)), progress)


def _run_side_by_side(
    runs: Sequence[_Run], workers: int, progress: Callable[[int, int], None] | None
) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    # a thread must outlive its child (PR_SET_PDEATHSIG), and only the main thread hears Ctrl-C: so
    # it waits here, and the pool works
    with ThreadPoolExecutor(max(1, min(workers, len(runs))), thread_name_prefix="sandbox") as pool:
        try:
            futures = {pool.submit(_complete, run): number for number, run in enumerate(runs)}
            for future in as_completed(futures):
                outcomes[futures[future]] = future.result()
                if progress is not None:
                    progress(len(outcomes), len(runs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for run in runs:
                run.kill()
            raise
    return [outcomes[number] for number in range(len(runs))]


def _complete(run: _Run) -> Outcome:
    try:
        run.start()
        run.wait()
    except OSError as error:
        raise HoldfastError(
            f"Expected to start a process that runs a program, but it failed: {error}. Free "
            "memory, processes or open files, or lower `workers`."
        ) from error
    outcome = run.outcome()
    run.program, run.errors, run.report = (
        None,
        b"",
        b"",
    )  # thousands of runs may be waiting for the last one
    return outcome
