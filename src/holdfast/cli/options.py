"""An argument parser whose mistakes are holdfast's: one `ConfigError` with the nearest option instead of argparse's own
exit."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

from holdfast.errors import ConfigError, did_you_mean


class OptionParser(argparse.ArgumentParser):
    """`ArgumentParser` that raises `ConfigError`, allows no abbreviations, and takes hyphens and underscores alike."""

    def __init__(self, *, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parses all words.

        Raises:
            ConfigError: an unknown option (with the nearest known one), a missing or a wrong value.
        """
        result, unknown = self.parse_known_args(with_underscores(argv))
        if unknown:
            options = [o for a in self._actions for o in a.option_strings if o.startswith("--")]
            known = ", ".join(sorted(options))
            raise ConfigError(
                [
                    f"unknown option '{w}'.{did_you_mean(w.partition('=')[0], options) or f' Known: {known}.'}"
                    for w in unknown
                ]
            )
        return result

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. See '{self.prog} --help'.")


def with_underscores(argv: list[str]) -> list[str]:
    """The words with hyphens in option names turned into underscores; values stay as they are."""
    return [
        f"--{w[2:].partition('=')[0].replace('-', '_')}{''.join(w.partition('=')[1:])}" if w.startswith("--") else w
        for w in argv
    ]


def console() -> Any:
    """The terminal as it is; in a file or a pipe 120 columns, so that tables are not squeezed into 80."""
    import sys

    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=120)


def nearest(name: str, known: list[str], *, count: int = 3) -> list[str]:
    """Up to `count` names like `name`, the nearest first."""
    return difflib.get_close_matches(name, known, n=count, cutoff=0.4)
