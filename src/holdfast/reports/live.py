"""A page that changes while it is looked at, in pieces: what a browser that has an earlier one still needs.

A `Look` is the page at one moment; `LivePage` takes one at most every few seconds, however many browsers ask, less
often where taking it is slow, and never makes anybody wait for it: until it is there, what was seen before is the
answer. What cannot be read at a moment (a folder that went away, a database that is busy) stands above what was seen
last.
"""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.reports.blocks import Banner, Page
from holdfast.reports.html import Html, Part, parts, render_live
from holdfast.support.files import to_jsonable

SECONDS = 2.0
"""Between two looks at what is under way."""
SECONDS_OVER = 10.0
"""Between two looks at what has ended, for it may be continued."""
SHARE = 0.2
"""Of the time, at most, that looking may take."""
MOST = 30.0
"""Seconds between two looks, at most."""
PATIENCE = 0.5
"""Seconds that an answer waits for a look that is being taken."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """What is seen at one moment."""

    page: Page
    over: bool = False
    """Whether nothing more is expected."""


class LivePage:
    """The newest state of a page, by the pieces that changed.

    Args:
        take: looks once; the same object twice says that nothing changed.
        waiting: the page until the first look succeeds.
        clock: seconds.
    """

    def __init__(self, take: Callable[[], Look], *, waiting: Page, clock: Callable[[], float] = time.monotonic) -> None:
        self.take, self.clock = take, clock
        self.seen = Look(page=waiting)
        self._lock = threading.Lock()
        self._own = secrets.token_hex(4)  # another process's versions say nothing about these
        self._parts: list[tuple[int, Part]] = []
        self._version = 0
        self._next = -math.inf
        self._cost = 0.0
        self._shown: tuple[Page, str] | None = None
        self._looking: threading.Thread | None = None
        self._put(waiting, "")

    @property
    def document(self) -> str:
        """What a browser loads first; it asks for all else."""
        return render_live(self.seen.page.tab)

    def changes(self, since: str = "") -> dict[str, Any]:
        """What is new since an answer.

        Args:
            since: its "version"; "" or anything else that is none asks for everything.

        Returns:
            As JSON: "version", "tab" (title), "count" (of parts), "parts" (by place, what changed: "html" and
            "figures"), "over", "seconds" (when to ask again).
        """
        looking = self._begin()
        if looking is not None:
            looking.join(PATIENCE)
        with self._lock:
            own, _, number = since.partition(".")
            known = int(number) if own == self._own and number.isdecimal() and len(number) < 12 else 0
            new = {
                str(place): {"html": part.html, "figures": to_jsonable(part.figures)}
                for place, (version, part) in enumerate(self._parts)
                if version > known
            }
            return {
                "version": f"{self._own}.{self._version}",
                "tab": self.seen.page.tab,
                "count": len(self._parts),
                "parts": new,
                "over": self.seen.over,
                "seconds": 1.0 if self._looking is not None else self._seconds,
            }

    @property
    def _seconds(self) -> float:
        return max(SECONDS_OVER if self.seen.over else SECONDS, self._cost / SHARE)

    def _begin(self) -> threading.Thread | None:
        """The look that is being taken, a new one where it is time for one."""
        with self._lock:
            if self._looking is None and self.clock() >= self._next:
                self._looking = threading.Thread(target=self._look, daemon=True)
                self._looking.start()
            return self._looking

    def _look(self) -> None:
        began, seen, trouble = self.clock(), self.seen, ""
        try:
            seen = self.take()
        except (HoldfastError, OSError) as error:
            trouble = str(error) or type(error).__name__
        except Exception as error:  # of a thread nobody would hear of it
            trouble = f"{type(error).__name__}: {error}"
        with self._lock:
            self.seen = seen
            if self._shown != (seen.page, trouble):
                self._put(seen.page, trouble)
            ended = self.clock()
            self._cost = min(ended - began, MOST * SHARE)  # the first look imports what later ones have
            self._next = ended + min(SECONDS / 2 + self._cost / SHARE, MOST)
            self._looking = None

    def _put(self, page: Page, trouble: str) -> None:
        self._shown = page, trouble
        if trouble:
            text = f"Not to be read at the moment; this is what was seen last. {trouble}"
            page = dataclasses.replace(page, blocks=[Banner(text, "warn"), *page.blocks])
        self._version += 1
        old, self._parts = self._parts, []
        for place, part in enumerate(parts(page)):
            part = dataclasses.replace(part, html=_without_links(part.html))
            kept = place < len(old) and old[place][1] == part
            self._parts.append((old[place][0] if kept else self._version, part))


def _without_links(html: Html) -> Html:
    """Links lead from a page in a folder to its other files, which a server of one page does not give."""
    return Html(re.sub(r'<a href="(?!#)[^"]*">(.*?)</a>', r"\1", html, flags=re.S))
