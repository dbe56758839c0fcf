"""Cross-entropy, divergence and their gradient to 150 digits, from nothing but their definitions: what every way to
compute the loss is held against where logits are extreme."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from mpmath import mp, mpf
from torch import Tensor

DIGITS = 150


class Setting(NamedTuple):
    """What stays the same over the rows."""

    direction: str = "forward"
    beta: float = 0.5
    temperature: float = 1.0
    scale: float = 1.0
    cap: float | None = None
    """Soft-cap of both models' logits."""
    ce: float = 0.25
    kl: float = 0.5


SETTINGS = [
    Setting(direction, beta, temperature, scale, cap)
    for direction, beta in (("forward", 0.5), ("reverse", 0.5), ("jsd", 0.5), ("jsd", 0.1), ("jsd", 0.9))
    for temperature in (1.0, 0.5)
    for scale, cap in ((1.0, None), (0.5, 30.0))
]


class Row(NamedTuple):
    """Of one token."""

    ce: float
    divergence: float
    entropy: float
    gradient: list[float]
    """Of `ce * cross-entropy + kl * divergence`, to the raw logits."""


def exact(z_NV: Tensor, w_NV: Tensor, labels_N: Tensor, setting: Setting) -> list[Row]:
    """Every row's figures and gradient.

    Args:
        z_NV, w_NV: `[N, V]` raw logits of student and teacher.
        labels_N: `[N]`.
        setting: the rest.
    """
    rows = zip(z_NV.tolist(), w_NV.tolist(), labels_N.tolist(), strict=True)
    return [_row(tuple(z), tuple(w), y, setting) for z, w, y in rows]


@functools.cache
def _row(z: tuple[float, ...], w: tuple[float, ...], label: int, s: Setting) -> Row:
    with mp.workdps(DIGITS):
        loss, divergence, entropy = _loss(z, w, label, s)
        u, slopes = _capped(z, s)
        v, _ = _capped(w, s)
        ones, temperature, beta = _log_softmax(u), mpf(s.temperature), mpf(s.beta)
        q, p = (_log_softmax([x / temperature for x in logits]) for logits in (u, v))
        # by log q, then through the softmax: d / d u_i = (g_i - q_i sum g) / T
        if s.direction == "forward":
            by_log = [-mp.exp(a) for a in p]
        elif s.direction == "reverse":
            by_log = [mp.exp(b) * (b - a + 1) for a, b in zip(p, q, strict=True)]
        else:
            mixed = [mp.log(beta * mp.exp(a) + (1 - beta) * mp.exp(b)) for a, b in zip(p, q, strict=True)]
            by_log = [(1 - beta) * mp.exp(b) * (b - m) for b, m in zip(q, mixed, strict=True)]
        total = mp.fsum(by_log)
        gradient = [
            slope * (s.ce * (mp.exp(one) - (i == label)) + s.kl * (g - mp.exp(b) * total) / temperature)
            for i, (slope, one, g, b) in enumerate(zip(slopes, ones, by_log, q, strict=True))
        ]
        ce = (loss - s.kl * divergence) / s.ce
        return Row(float(ce), float(divergence), float(entropy), [float(g) for g in gradient])


def loss_of(z: Sequence[Any], w: Sequence[Any], label: int, s: Setting) -> Any:
    """A row's loss to 150 digits, for differences of it."""
    with mp.workdps(DIGITS):
        return _loss(z, w, label, s)[0]


def _loss(z: Sequence[Any], w: Sequence[Any], label: int, s: Setting) -> tuple[Any, Any, Any]:
    u, v = _capped(z, s)[0], _capped(w, s)[0]
    ones, temperature, beta = _log_softmax(u), mpf(s.temperature), mpf(s.beta)
    q, p = (_log_softmax([x / temperature for x in logits]) for logits in (u, v))
    if s.direction == "jsd":
        mixed = [mp.log(beta * mp.exp(a) + (1 - beta) * mp.exp(b)) for a, b in zip(p, q, strict=True)]
        divergence = beta * _kl(p, mixed) + (1 - beta) * _kl(q, mixed)
    else:
        divergence = _kl(p, q) if s.direction == "forward" else _kl(q, p)
    entropy = -mp.fsum(mp.exp(one) * one for one in ones)
    return -s.ce * ones[label] + s.kl * divergence, divergence, entropy


def _capped(raw: Sequence[Any], s: Setting) -> tuple[list[Any], list[Any]]:
    scaled = [mpf(x) * mpf(s.scale) for x in raw]
    if s.cap is None:
        return scaled, [mpf(s.scale)] * len(scaled)
    bent = [mp.tanh(x / mpf(s.cap)) for x in scaled]
    return [mpf(s.cap) * t for t in bent], [mpf(s.scale) * (1 - t * t) for t in bent]


def _log_softmax(x: Sequence[Any]) -> list[Any]:
    top = max(x)
    total = top + mp.log(mp.fsum(mp.exp(a - top) for a in x))
    return [a - total for a in x]


def _kl(first: Sequence[Any], second: Sequence[Any]) -> Any:
    return mp.fsum(mp.exp(a) * (a - b) for a, b in zip(first, second, strict=True))


LABELS = torch.arange(5)


def extreme_logits() -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, student's and teacher's raw logits `[5, 6]`, float64 numbers that bfloat16 holds."""
    generator = torch.Generator().manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(5, 6, generator=generator, dtype=torch.float64)

    def held(x: Tensor) -> Tensor:
        return x.bfloat16().double()

    z, w, near = normal(), normal(), normal()
    yield "usual", held(z), held(w)
    yield "times 30", held(30 * z), held(30 * w)
    yield "times 1000", held(1000 * z), held(1000 * w)
    yield "near each other, times 30", held(30 * z), held(30 * z + 0.2 * near)
    certain = 3e4 * torch.eye(5, 6, dtype=torch.float64)
    yield "certain, of different tokens", held(certain), held(certain.flip(1))
    yield "certain, of the same", held(certain), held(certain)
    mask = torch.zeros(5, 6, dtype=torch.bool)
    mask[torch.arange(5), (torch.arange(5) + 2) % 6] = mask[torch.arange(5), (torch.arange(5) + 3) % 6] = True
    for value in (-1e4, -1e20):
        yield f"masked alike with {value:g}", held(z.masked_fill(mask, value)), held(w.masked_fill(mask, value))
        yield f"the student masked with {value:g}", held(z.masked_fill(mask, value)), held(w)
        yield f"the teacher masked with {value:g}", held(z), held(w.masked_fill(mask, value))
