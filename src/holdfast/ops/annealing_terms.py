"""What all row stages of the annealing op share: the terms of a call, and the figures of a row (see
`ops.annealing_rows`)."""

from __future__ import annotations

from dataclasses import dataclass

FIGURES = ("ce", "kl", "entropy", "correct", "bad_student", "bad_teacher", "weight")
"""Columns of the figures a row stage writes."""
GATES = ("none", "probability", "entropy")
"""What a row's cross-entropy may be weighted by."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What stays the same over all rows of a call."""

    logit_scale: float = 1.0
    softcap: float | None = None
    teacher_logit_scale: float = 1.0
    teacher_softcap: float | None = None
    temperature: float = 1.0
    direction: str = "forward"
    """"forward", "reverse" or "jsd"."""
    beta: float = 0.5
    """Weight of the teacher in the mixture of the generalised Jensen-Shannon divergence, 0 < beta <
    1."""
    mask_target: bool = False
    """The divergence leaves the label out of both softmaxes."""
    gate: str = "none"
    """One of `GATES`."""
    floor: float = 0.0
    """Least value of gate^power."""
    gate_strength: float = 1.0
    """s of 1 - s + s gate^power."""
