"""What the files of a model make this machine do. A chat template and the rules of a tokenizer are
programs of others: they get a limit of time and memory, they fail as files of the model that are
named, and the date that they read is one of ours (`holdfast.support.dates`).

jinja2's sandbox keeps a template from the system, not from a loop without end or a text of
gigabytes. The rules of a tokenizer are regular expressions that run in Rust, where nothing of
Python can stop them: they are tried once, in a process of their own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import (
    ProcessorMixin,
    TokenizersBackend,
    processing_utils,
    tokenization_utils_base,
)

from holdfast.errors import ModelError, first_line
from holdfast.support.dates import use_clock

SECONDS = 2
"""Of processor time that a template may take for one message, and a tokenizer for the texts that it
is tried on."""
BYTES = 2**29
"""Of memory that either may take."""
_TRIAL = "\n".join(
    [
        "What is the capital of Norway? It's Oslo, isn't it: 1234567890, 3.14 and  two  spaces.",
        *(unit * 100 for unit in ("a", " ", "aB3 ", "=-", "é", "中", "\n", "\t", "<|", "0")),
        "a" * 100 + "!?",
    ]
)


class UnusableTemplate(ModelError, TemplateError):
    """A chat template failed. As an error of jinja2, too: libraries try again without a system
    message at one."""


def guard_models() -> None:
    """From now on, in this process, chat templates have limits, and what a tokenizer or a template
    fails with is a `ModelError` that names it; templates write the date of `dates_of`."""
    use_clock()
    for owner, name, guard in (
        (tokenization_utils_base, "render_jinja_template", _limited),
        (processing_utils, "render_jinja_template", _limited),
        (tokenization_utils_base.PreTrainedTokenizerBase, "apply_chat_template", _template_named),
        (ProcessorMixin, "apply_chat_template", _template_named),
        (TokenizersBackend, "_encode_plus", _tokenizer_named),
    ):
        function = getattr(owner, name)
        if not hasattr(function, "_holdfast"):
            guarded = functools.wraps(function)(guard(function))
            guarded._holdfast = True  # type: ignore[attr-defined]
            setattr(owner, name, guarded)


def _limited(render: Callable[..., Any]) -> Callable[..., Any]:
    def within_limits(*args: Any, **kwargs: Any) -> Any:
        conversations = kwargs.get("conversations") or args[0]
        messages = sum(len(getattr(turns, "messages", turns)) for turns in conversations)
        with _limits(SECONDS * max(1, messages)):
            return render(*args, **kwargs)

    return within_limits


@contextlib.contextmanager
def _limits(seconds: float) -> Iterator[None]:
    """Processor time and memory for the block; the first in the main thread only, which alone gets
    signals.

    Raises:
        TimeoutError, MemoryError: they are used up.
    """

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"more than {seconds:g} seconds")

    timed = threading.current_thread() is threading.main_thread() and not any(
        signal.getitimer(signal.ITIMER_VIRTUAL)
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, stop) if timed else None
    try:
        _allow_memory(hard, soft)
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _allow_memory(hard: int, soft: int) -> None:
    """Limits this process to `BYTES` more than it has, where the system says how much that is,
    unless its limit is lower."""
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/statm", "rb", buffering=0) as pages,
    ):
        used = int(pages.read().split()[0]) * resource.getpagesize()
        if soft == resource.RLIM_INFINITY or soft > used + BYTES:
            resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))


def _template_named(apply: Callable[..., Any]) -> Callable[..., Any]:
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return apply(self, *args, **kwargs)
        except ModelError:
            raise
        except Exception as error:  # what a template raises has no common base
            reason = f"{type(error).__name__}: {first_line(error)}"
            if isinstance(error, MemoryError):
                reason = f"it takes more than {BYTES >> 20} MiB of memory"
            if isinstance(error, TimeoutError):
                reason = f"it takes {error}"
            raise UnusableTemplate(
                f"The chat template of {_name(self)} cannot write these messages: {reason}. "
                "Correct chat_template.jinja there (or the template of chat_template or "
                "chat_template_path), or the messages."
            ) from error

    return named


def _tokenizer_named(encode: Callable[..., Any]) -> Callable[..., Any]:
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return encode(self, *args, **kwargs)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise ModelError(
                f"The tokenizer of {_name(self)} cannot read this text: {first_line(error)}. "
                "Check the regular expressions in its tokenizer.json (pre_tokenizer, "
                "normalizer), or copy it again from the model."
            ) from error

    return named


def is_panic(error: BaseException) -> bool:
    """Whether code in Rust has given up; what it raises then is no `Exception`."""
    return type(error).__name__ == "PanicException"


def _name(processing: Any) -> str:
    return (
        str(getattr(getattr(processing, "tokenizer", processing), "name_or_path", ""))
        or "the model"
    )


def problem_of_rules(tokenizer: Any) -> str:
    """What keeps a tokenizer's rules from being used, in a child process: they fail, run without an
    end, or take gigabytes. Empty where nothing does."""
    return tried(lambda: tokenizer(_TRIAL))


def tried(work: Callable[[], object], *, patience: float = 60.0) -> str:
    """What a function comes to in a child process with limits: a reason where it fails or is
    stopped, else "".

    Args:
        work: what is tried; its result is lost.
        patience: seconds after which a child is stopped that computes nothing (it holds a lock of
            its parent), which says nothing of the function.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # of a fork beside threads: the child uses none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _in_child(work, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        waited = not select.select([pipe], [], [], patience)[0]
        if waited:
            os.kill(child, signal.SIGKILL)
        reason = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    if waited or (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0):
        return ""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return f"more than {SECONDS} seconds"
    return reason or f"more than {BYTES >> 20} MiB of memory"


def _in_child(work: Callable[[], object], writing: int) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Rust writes there what it panics of
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        _allow_memory(hard, soft)
        work()
        code = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(writing, first_line(error).encode()[:4000])
    finally:
        os._exit(code)
