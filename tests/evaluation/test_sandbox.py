"""The sandbox: how programs end, what they cannot reach, and that nothing runs where a wall is missing."""

from __future__ import annotations

import dataclasses
import os
import platform
import socket
import sys
import tempfile
import threading
import time

import pytest

from holdfast.errors import ConfigError, HoldfastError
from holdfast.evaluation.code import sandbox
from holdfast.evaluation.code.sandbox import REASONS, Limits, Outcome, capabilities, one_line, run_all

SHORT = Limits(cpu_seconds=1, wall_seconds=8.0)
PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)

def refused(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return error.errno in (1, 13)  # EPERM, EACCES
    return False

def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""


@pytest.fixture
def needs_sandbox() -> None:
    lacking = [name for name, there in capabilities().items() if not there and name != "namespaces"]
    if lacking:
        pytest.skip(f"this machine has no {', '.join(lacking)}")


@pytest.fixture
def needs_namespaces(needs_sandbox) -> None:
    if not capabilities()["namespaces"]:
        pytest.skip("this machine allows no namespaces")


def run_python(program: str, *, limits: Limits | None = None) -> Outcome:
    return run_all([program], limits=limits, workers=1)[0]


def attack(*lines: str, reason: str = "passed") -> Outcome:
    """Runs an attack, of which every line must hold inside."""
    outcome = run_python(PRELUDE + "\n".join(lines), limits=SHORT)
    assert outcome.reason == reason, outcome
    return outcome


def without(monkeypatch: pytest.MonkeyPatch, *layers: str) -> None:
    """Takes layers out, and the check that refuses to run without them."""
    left = sandbox._layers() - set(layers)
    monkeypatch.setattr(sandbox, "_layers", lambda: left)
    monkeypatch.setattr(sandbox, "require_sandbox", lambda: None)


# ----------------------------------------------------------------------------------------------------- how programs end


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.parametrize(
    ("program", "reason", "detail"),
    [
        ("assert sorted([2, 1]) == [1, 2]", "passed", ""),
        ("", "passed", ""),
        ("x = 3\nassert x == 4, 'not four'", "failed", "AssertionError: not four (line 2: assert x == 4, 'not four')"),
        (
            "def f(n):\n    return 1 // n\nf(0)",
            "error",
            "ZeroDivisionError: integer division or modulo by zero (line 2: return 1 // n)",
        ),
        ("def f(:\n  pass", "error", "SyntaxError: "),
        ("def f():\n    return f()\nf()", "error", "RecursionError: "),
        ("import numpy", "error", "ModuleNotFoundError: No module named 'numpy'"),
        ("input()", "error", "EOFError"),
        ("x = '\\ud800'\nraise ValueError(x)", "error", "ValueError: "),
        ("raise ValueError('\\x1b[31mred\\nlast')", "error", "ValueError: last"),
        ("class E(Exception):\n    def __str__(self): raise KeyError\nraise E", "error", "E (line 3: raise E)"),
        ("import sys; sys.exit(0)", "exited early", "SystemExit: 0"),
        ("import os; os._exit(0)", "exited early", "exit code 0"),
        ("quit = None\nraise SystemExit", "exited early", "SystemExit: None"),
        ("raise KeyboardInterrupt", "error", "KeyboardInterrupt (line 1: raise KeyboardInterrupt)"),
        ("import ctypes; ctypes.string_at(0)", "crashed", "Segmentation fault"),
        ("import os; os.abort()", "crashed", "Aborted"),
        ("x = [0] * 10**9", "out of memory", "MemoryError"),
        ("x = []\nwhile True: x.append(' ' * 2**20 + str(len(x)))", "out of memory", "MemoryError"),
        ("open('/etc/hostname')", "stopped by the sandbox", "PermissionError: "),
    ],
)
def test_how_a_program_ends(program, reason, detail):
    # little memory, so that filling it takes less than the second of processor time on a busy machine, too
    outcome = run_python(program, limits=dataclasses.replace(SHORT, memory_bytes=192 << 20))
    assert outcome.reason == reason, outcome
    assert outcome.passed == (reason == "passed")
    assert outcome.detail.startswith(detail) and outcome.detail.isprintable()
    assert 0 < outcome.seconds < 8
    assert reason in REASONS


@pytest.mark.usefixtures("needs_sandbox")
def test_a_program_with_an_escape_code_or_a_lone_surrogate_as_text():
    assert run_python("x = '\ud800'", limits=SHORT).reason == "error"
    assert run_python("x = 1\0", limits=SHORT).reason == "error"
    assert one_line("\x1b[2Jhi\tthere" + "x" * 999, most=12) == "\ufffd[2Jhi\ufffdther…"


@pytest.mark.usefixtures("needs_sandbox")
def test_what_solutions_use_works():
    program = """
import asyncio, dataclasses, pickle, random, signal, sqlite3, time, zoneinfo, hashlib, decimal, datetime, tempfile, os
@dataclasses.dataclass
class Point:
    x: int
assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
async def wait():
    await asyncio.sleep(0.001)
    return 5
assert asyncio.run(wait()) == 5
assert sqlite3.connect(":memory:").execute("select 1 + 1").fetchone() == (2,)
assert hashlib.sha256(b"").hexdigest().startswith("e3b0") and os.urandom(3) and time.time() > 0 and os.getpid() > 1
hits = []
signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
os.kill(os.getpid(), signal.SIGALRM)
signal.raise_signal(signal.SIGALRM)
assert hits == [1, 1]
print("to nowhere")
if __name__ == "__main__":
    raise RuntimeError("a demonstration at the end is not run")
"""
    outcome = run_python(program, limits=SHORT)
    assert outcome.passed, outcome


@pytest.mark.usefixtures("needs_sandbox")
def test_equal_programs_end_alike():
    """Sets of strings have the same order in every run."""
    program = "raise ValueError(' '.join({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}))"
    assert len({o.detail for o in run_all([program] * 4, limits=SHORT)}) == 1


# ------------------------------------------------------------------------------------------------------ what has an end


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        pytest.param(
            "import signal\nfor s in (signal.SIGXCPU, signal.SIGALRM, signal.SIGTERM): signal.signal(s, "
            "signal.SIG_IGN)\nwhile True: pass",
            marks=pytest.mark.slow,
        ),
        "while True: print('x' * 10**6)",
        pytest.param("import sys\nwhile True: sys.stderr.write('x' * 10**6)", marks=pytest.mark.slow),
        "import time; time.sleep(100)",
        "import os, time\nfor fd in range(1000):\n    try: os.close(fd)\n    except OSError: pass\nwhile True: "
        "time.sleep(1)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        pytest.param("max(iter(int, 1))", marks=pytest.mark.slow),
    ],
)
def test_what_would_go_on_is_ended(program):
    outcome = run_python(program, limits=Limits(cpu_seconds=1, wall_seconds=1.6))
    assert (outcome.reason, outcome.passed) == ("timed out", False)
    assert outcome.seconds < 5


@pytest.mark.usefixtures("needs_sandbox")
def test_output_is_kept_to_a_cap():
    program = "import sys\nfor _ in range(400): sys.stderr.write('x' * 10**4)\nsys.stderr.write('\\nend')"
    with sandbox._workplace() as place:
        run = sandbox._Run(program, Limits(output_bytes=100), sandbox._layers(), place)
        run.start()
        run.wait()
    assert run.outcome().passed
    assert len(run.errors) == 100 and run.errors.endswith(b"end")


@pytest.mark.usefixtures("needs_namespaces")
@pytest.mark.parametrize(
    "program",
    [
        "with open('a', 'wb') as f: f.write(b'x' * (1 << 21))",
        "for i in range(100):\n    with open(f'a{i}', 'wb') as f: f.write(b'x' * (1 << 19))",
        "for i in range(100000): open(f'a{i}', 'w').close()",
        "held = [open('a', 'w') for _ in range(1000)]",
    ],
)
def test_files_are_limited(program):
    outcome = run_python(program, limits=Limits(cpu_seconds=2, file_bytes=1 << 20, disk_bytes=4 << 20))
    assert outcome.reason == "stopped by the sandbox", outcome


# ------------------------------------------------------------------------------------------------- what is out of reach


@pytest.mark.usefixtures("needs_sandbox")
def test_the_network(tmp_path):
    with (
        socket.socket() as server,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as post,
    ):
        server.bind(("127.0.0.1", 0))
        local.bind(str(tmp_path / "socket"))
        post.bind("\0holdfast-test")
        for one in (server, local):
            one.listen()
            one.setblocking(False)
        post.setblocking(False)
        attack(
            "import socket",
            f"assert refused(socket.create_connection, ('127.0.0.1', {server.getsockname()[1]}))",
            "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16, 17, 40):",  # netlink, packet, vsock
            "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):",
            "        assert refused(socket.socket, family, kind), (family, kind)",
            "assert refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
            "a, b = socket.socketpair()",
            "assert refused(a.sendto, b'x', '\\0holdfast-test')",
            "assert refused(a.sendmsg, [b'x'], [], 0, '\\0holdfast-test')",
            "a.sendall(b'x')",
        )
        for one in (server, local):
            with pytest.raises(BlockingIOError):
                one.accept()
        with pytest.raises(BlockingIOError):
            post.recv(1)


@pytest.mark.usefixtures("needs_sandbox")
def test_files_of_the_user(tmp_path, monkeypatch):
    """Neither read nor changed, in no way; the caller's working directory and home folder included."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    secret.chmod(0o644)
    before = secret.stat()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    attack(
        f"secret, folder, home = {str(secret)!r}, {str(tmp_path)!r}, {os.path.expanduser('~root')!r}",
        "for mode in ('r', 'w', 'a', 'r+', 'x'):",
        "    assert refused(open, secret, mode) or mode == 'x' and os.path.exists(secret), mode",
        "assert refused(os.open, secret, os.O_RDONLY | os.O_TRUNC)",
        "for path in (folder, home, '/', '/home', '/root', '/tmp', '/etc', '/proc', '/sys', '/dev', '/var'):",
        "    assert refused(os.listdir, path) or not os.path.exists(path), path",
        "for path in ('/etc/passwd', '/proc/self/environ', f'/proc/{os.getppid()}/environ', "
        "f'/proc/{os.getppid()}/mem', '/proc/self/mem'):",
        "    assert refused(open, path), path",
        "for new in (folder + '/new', '/tmp/holdfast-new', os.path.dirname(os.__file__) + '/holdfast_new.py'):",
        "    assert refused(open, new, 'w') and refused(os.mkdir, new) and refused(os.symlink, secret, new), new",
        "assert refused(open, os.__file__, 'a')",
        "assert refused(os.remove, secret) and refused(os.rename, secret, secret + '2')",
        "assert refused(os.truncate, secret, 0) and refused(os.chmod, secret, 0o777) and refused(os.chown, "
        "secret, 1, 1)",
        "assert refused(os.utime, secret) and refused(os.setxattr, secret, 'user.a', b'b') and "
        "refused(os.mkfifo, folder + '/pipe')",
        "assert refused(os.chroot, '.')",
    )
    after = secret.stat()
    assert secret.read_text() == "secret" and (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert os.listdir(tmp_path) == ["secret.txt"]


@pytest.mark.usefixtures("needs_namespaces")
def test_links_out_of_the_folder_lead_nowhere(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    attack(
        f"os.symlink({str(tmp_path / 'secret.txt')!r}, 'link')",
        "assert refused(open, 'link') and refused(open, 'link', 'w')",
        "try: os.link(os.__file__, 'hard')",
        "except OSError: pass",
        "else: raise AssertionError",
    )
    assert (tmp_path / "secret.txt").read_text() == "secret"


@pytest.mark.usefixtures("needs_sandbox")
def test_other_processes():
    """No signal to the caller, no look into it, none of its limits lowered; the caller would not live to say so."""
    attack(
        "import resource, signal, fcntl",
        "parent = os.getppid()",
        "for target in (parent, -parent, -1, 0, 1):",
        "    for number in (0, signal.SIGTERM, signal.SIGKILL):",
        "        assert refused(os.kill, target, number), target",
        "assert refused(os.killpg, os.getpgid(parent), signal.SIGTERM)",
        "assert refused(resource.prlimit, parent, resource.RLIMIT_CPU, (1, 1))",
        "assert refused(os.sched_setaffinity, parent, {0}) and refused(os.setpriority, os.PRIO_PROCESS, parent, 19)",
        "assert refused(os.pidfd_open, parent)",
        "r, w = os.pipe()",
        "assert refused(fcntl.fcntl, r, 8, parent) and refused(fcntl.fcntl, r, 10, 9)",  # F_SETOWN, F_SETSIG
        "assert refused(os.setsid) and refused(os.setpgid, 0, 0)",
    )


@pytest.mark.usefixtures("needs_sandbox")
def test_no_other_process_thread_or_program():
    attack(
        "import subprocess, threading, multiprocessing",
        "assert refused(os.fork) and refused(os.system, 'true') or os.system('true') != 0",
        "assert refused(subprocess.run, ['/bin/true']) and refused(os.posix_spawn, '/bin/true', ['true'], {})",
        "assert refused(os.execv, '/bin/true', ['true']) and refused(os.execv, sys.executable, ['python'])",
        "try: threading.Thread(target=print).start()",
        "except RuntimeError: pass",
        "else: raise AssertionError('a thread')",
        "assert refused(multiprocessing.get_context('fork').Process(target=print).start)",
    )
    assert (
        run_python("import threading\nthreading.Thread(target=print).start()", limits=SHORT).reason
        == "stopped by the sandbox"
    )
    assert run_python("import os\nwhile True: os.fork()", limits=SHORT).reason == "stopped by the sandbox"


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")
def test_system_calls_that_no_solution_needs():
    numbers = {
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "unshare": 272,
        "setns": 308,
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "setuid": 105,
        "setresuid": 117,
        "capset": 126,
        "prctl": 157,
        "seccomp": 317,
        "bpf": 321,
        "perf_event_open": 298,
        "keyctl": 250,
        "add_key": 248,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "memfd_create": 319,
        "shmget": 29,
        "mq_open": 240,
        "clone": 56,
        "clone3": 435,
        "vfork": 58,
        "execveat": 322,
        "tkill": 200,
        "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297,
        "pidfd_send_signal": 424,
        "personality": 135,
        "openat2": 437,
        "open_by_handle_at": 304,
        "mknod": 133,
        "reboot": 169,
        "kexec_load": 246,
        "init_module": 175,
        "swapon": 167,
        "landlock_create_ruleset": 444,
        "x32 getpid": 0x40000000 | 39,
        "fchmod": 91,
        "fchmodat": 268,
        "fchmodat2": 452,
    }
    attack(
        f"allowed = [name for name, number in {numbers!r}.items() if not refused(call, number, 0, 0, 0)]",
        "assert not allowed, allowed",
    )


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86_64")
def test_a_call_through_another_architecture_kills():
    """`int 0x80` is the table of 32-bit x86, where the numbers mean other calls."""
    outcome = attack(
        "import mmap",
        "page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)",
        "page.write(bytes.fromhex('b814000000cd80c3'))",  # mov eax, 20 (getpid); int 0x80; ret
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()",
        reason="crashed",
    )
    assert outcome.detail == "Bad system call"


@pytest.mark.usefixtures("needs_sandbox")
def test_limits_and_rights_do_not_come_back():
    attack(
        "import resource",
        "for which in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, "
        "resource.RLIMIT_CORE):",
        "    try: resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
        "    except ValueError: continue",
        "    raise AssertionError(which)",
        "assert refused(os.setuid, 0) and refused(os.setgid, 0) and refused(os.setgroups, [0])",
        "assert libc.prctl(22, 0, 0, 0, 0) == -1",
    )


@pytest.mark.usefixtures("needs_sandbox")
def test_nothing_comes_in_from_the_caller(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        attack(
            "assert dict(os.environ, LC_CTYPE='') == {'PYTHONHASHSEED': '0', 'LC_CTYPE': ''}, os.environ",
            "assert sys.stdin.read() == '' and sys.argv == ['-c']",
            "assert len(os.listdir('.')) == 0",
            "def there(fd):",
            "    try: os.fstat(fd)",
            "    except OSError: return False",
            "    return True",
            "assert sum(map(there, range(3, 1024))) == 1",  # the pipe for the report
            "assert not any('site-packages' in path for path in sys.path)",
        )


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.parametrize(
    "program",
    [
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'started\\n\\npassed\\n\\n')\n    except "
        "OSError: pass\nos._exit(0)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'0' * 32 + b' passed\\n\\n' * 20000)\n    "
        "except OSError: pass",
        "import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass",
        "import os, builtins\nos.write = os._exit = builtins.exec = None\nimport "
        "atexit\natexit.register(print)\nos.kill(os.getpid(), 9)",
        "import os\ndef check(): os._exit(0)\ncheck()\nassert False",
    ],
)
def test_a_pass_is_not_had_by_the_way_a_program_ends(program):
    assert not run_python(program, limits=SHORT).passed


@pytest.mark.usefixtures("needs_sandbox")
def test_the_folder_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    programs = ["x = 1", "import os; os._exit(1)", "while True: pass"]
    if capabilities()["namespaces"]:
        programs.append(
            "import os\nos.makedirs('a/b')\nwith open('a/b/c', 'w') as f: f.write('x')\nassert "
            "open('a/b/c').read() == 'x'"
        )
    outcomes = run_all(programs, limits=SHORT)
    assert [o.reason for o in outcomes] == ["passed", "exited early", "timed out", "passed"][: len(programs)]
    assert os.listdir(tmp_path) == []


# -------------------------------------------------------------------------------------------------- each wall by itself


@pytest.mark.usefixtures("needs_sandbox")
def test_without_namespaces_the_rest_holds_and_nothing_is_written(monkeypatch):
    layers = sandbox._layers() - {"namespaces"}
    monkeypatch.setattr(sandbox, "_layers", lambda: layers)
    assert capabilities()["namespaces"] is False
    reasons = [
        o.reason
        for o in run_all(
            ["x = 1", "open('a', 'w')", "import socket; socket.socket()", "open('/dev/null', 'w')"], limits=SHORT
        )
    ]
    assert reasons == ["passed", "stopped by the sandbox", "stopped by the sandbox", "passed"]


@pytest.mark.parametrize("missing", ["seccomp", "landlock"])
def test_nothing_runs_without_a_needed_wall(monkeypatch, missing):
    monkeypatch.setattr(sandbox, "_layers", lambda: frozenset({"seccomp", "landlock", "namespaces"} - {missing}))
    monkeypatch.setattr(sandbox._Run, "start", lambda self: pytest.fail("started"))
    with pytest.raises(ConfigError, match=f"without {missing}"):
        run_python("x = 1")


def test_nothing_runs_on_another_system(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    sandbox._probed.cache_clear()
    try:
        assert capabilities() == {"linux": False, "seccomp": False, "landlock": False, "namespaces": False}
        with pytest.raises(ConfigError, match="linux and seccomp and landlock"):
            run_all([])
    finally:
        sandbox._probed.cache_clear()


@pytest.mark.usefixtures("needs_sandbox")
def test_a_layer_that_fails_in_the_child_is_an_error(monkeypatch):
    """The program does not run where a layer was promised and does not come."""
    fail = "def fail(*_, **__): raise OSError('no rules')\nc._restrict_files = fail\nc.main()"
    bootstrap = sandbox._bootstrap
    monkeypatch.setattr(sandbox, "_bootstrap", lambda place: bootstrap(place).replace(";c.main()", "\n" + fail))
    with pytest.raises(HoldfastError, match="could not be set up: OSError: no rules"):
        run_python("x = 1")


# --------------------------------------------------------------------------------------------------------- many at once


@pytest.mark.usefixtures("needs_sandbox")
def test_many_in_order_with_progress():
    seen = []
    outcomes = run_all(
        [f"assert {i} % 3" for i in range(9)], workers=3, progress=lambda done, total: seen.append((done, total))
    )
    assert [o.passed for o in outcomes] == [i % 3 != 0 for i in range(9)]
    assert seen == [(i + 1, 9) for i in range(9)]
    assert run_all([]) == []


@pytest.mark.usefixtures("needs_sandbox")
def test_an_error_ends_all_of_them():
    began = time.monotonic()

    def stop(done, total):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run_all(
            ["x = 1"] + ["import time; time.sleep(60)"] * 3, workers=2, limits=Limits(wall_seconds=60), progress=stop
        )
    assert time.monotonic() - began < 10
    assert [t.name for t in threading.enumerate() if t.name.startswith("sandbox")] == []
