"""What a method declares is what it has: a hook or a need that nobody would notice is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from holdfast.errors import ConfigError
from holdfast.retention.protocol import LOSS_TERM, Passive, RetentionMethod, check_declared


@dataclass(frozen=True, kw_only=True)
class Mine(RetentionMethod):
    """A method of one's own."""

    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "mine"
    summary: ClassVar[str] = "mine"
    place: ClassVar[str] = "loss"


class WithLoss(Passive):
    def loss(self, batch: Any) -> None:
        return None


class WithWeights(Passive):
    def weights(self, named: Any, step: Any) -> None: ...


class Former(Passive):
    def after_step(self, named: Any, step: Any) -> None:
        raise AssertionError("nobody calls it")


def needing(*names: str) -> RetentionMethod:
    return type("Needing", (Mine,), {"needs": frozenset(names)})()


@pytest.mark.parametrize(
    ("method", "active", "said"),
    [
        (
            needing(),
            WithLoss(),
            "expected a loss hook with LOSS_TERM or TOKEN_WEIGHTS in needs, and none without them. Got a loss",
        ),
        (needing(LOSS_TERM), WithWeights(), "Got no loss hook and needs"),
        (
            needing("figures of a step"),
            WithWeights(),
            r"got 'figures of a step'\. Did you mean 'figures of the step'\?",
        ),
        (needing(), Former(), "expected a hook .* got none, so the method would change nothing"),
        (needing(), Passive(), "expected a hook"),
    ],
)
def test_protocol_what_does_not_fit_is_refused(method: RetentionMethod, active: Passive, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_declared(method, active)


def test_protocol_what_fits_is_taken() -> None:
    check_declared(needing(), WithWeights())
    check_declared(needing(LOSS_TERM), WithLoss())
