"""Laws that every retention method satisfies, ours and the user's: the test suite and
`holdfast.testing.check_method` run them.

A law trains a tiny model a few steps and raises `LawBroken` with the reason. It gets `make`, which
builds a trainer with given methods over always the same model, data and seed; what a law varies are
the methods and the trainer's arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from holdfast.config.declare import settings_of
from holdfast.errors import HoldfastError
from holdfast.retention.protocol import RetentionMethod
from holdfast.retention.registry import parse_retention
from holdfast.retention.services import trainable_parameters
from holdfast.support.environment import quiet_transformers
from holdfast.support.leftovers import scratch_folder
from holdfast.support.own_code import is_ours

Methods = Sequence[RetentionMethod]


SETTINGS: dict[str, Any] = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 2,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "seed": 3,
}
"""Of the trainers that laws are tried on, in transformers' names: a few steps on a CPU that leave
nothing behind."""


class LawBroken(Exception):
    """What a law expected, and what came."""


class Make(Protocol):
    """Builds a trainer of 6 steps over a tiny model; equal arguments, equal run."""

    def __call__(self, methods: Methods, **settings: Any) -> Any:
        """`settings` replace arguments of the trainer."""


def weights(trainer: Any) -> dict[str, Tensor]:
    """The trained parameters, copied."""
    trained = trainable_parameters(trainer.model)
    return {name: parameter.detach().clone() for name, parameter in trained.items()}


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Over all elements of all parameters.

    Raises:
        LawBroken: a weight is not finite, here or there.
    """
    assert a.keys() == b.keys()
    differences = {}
    for name in a:
        differences[name] = float((a[name] - b[name]).abs().max())
    lost = [name for name, difference in differences.items() if not math.isfinite(difference)]
    if lost:  # a NaN is neither larger nor smaller: max() would drop it
        raise LawBroken(f"expected finite weights, got NaN or infinity in {', '.join(lost[:3])}")
    return max(differences.values())


def trained(
    make: Make, methods: Methods, **settings: Any
) -> tuple[dict[str, Tensor], list[float | None]]:
    """(weights, logged losses) of a whole run."""
    trainer = make(methods, **settings)
    trainer.train()
    return weights(trainer), [r.get("loss") for r in trainer.state.log_history]


def off_is_direct(
    make: Make,
    off: Methods,
    *,
    direct: tuple[Mapping[str, Tensor], list[float | None]] | None = None,
) -> None:
    """With its strength at nothing a method is direct fine-tuning, bit for bit.

    Args:
        make: see `Make`.
        off: the methods, configured so.
        direct: what `trained` gave without any, where it is known.
    """
    expected, losses = trained(make, []) if direct is None else direct
    with_method, logged = trained(make, off)
    if (apart := largest_difference(expected, with_method)) != 0:
        raise LawBroken(
            "expected the same weights as after direct fine-tuning, bit for bit, got a difference "
            f"of {apart:.2g}"
        )
    if losses != logged:
        raise LawBroken(f"expected the losses of direct fine-tuning, {losses}, got {logged}")


def active_changes_the_run(
    make: Make,
    methods: Methods,
    *,
    without: Mapping[str, Tensor] | None = None,
    active: Mapping[str, Tensor] | None = None,
) -> None:
    """Switched on, a method changes the weights of the run.

    Args:
        make: see `Make`.
        methods: switched on.
        without: the weights of the run without them, where they are known.
        active: the weights of the run with them, where they are known.
    """
    direct = trained(make, [])[0] if without is None else without
    changed = trained(make, methods)[0] if active is None else active
    if not (apart := largest_difference(direct, changed)) > 1e-6:
        raise LawBroken(
            "expected weights that differ from those of direct fine-tuning, got a difference of "
            f"{apart:.2g} after 6 steps"
        )


def resumes(make: Make, methods: Methods, **settings: Any) -> dict[str, Tensor]:
    """Saved at a checkpoint and continued by new objects, a run gives the weights of no
    interruption.

    Returns:
        The weights of the run without interruption.
    """
    settings = {"save_strategy": "steps", "save_steps": 2, **settings}
    uninterrupted = make(methods, **settings)
    uninterrupted.train()
    again = make(methods, **settings)
    again.train(resume_from_checkpoint=str(Path(uninterrupted.args.output_dir) / "checkpoint-4"))
    if again.state.global_step != 6:
        raise LawBroken(f"expected 6 steps after continuing, got {again.state.global_step}")
    expected = weights(uninterrupted)
    if (apart := largest_difference(expected, weights(again))) != 0:
        raise LawBroken(
            "expected the same weights as after a run without interruption, got a difference of "
            f"{apart:.2g}. Save everything that hooks remember between steps in state_dict, and "
            "restore it in load_state_dict"
        )
    return expected


def accumulates(make: Make, methods: Methods, **settings: Any) -> None:
    """One batch of 4, and 4 micro-batches of 1, are the same step but for rounding: token counts
    are global, hooks act once. Under plain SGD, unless `settings` say otherwise, since Adam would
    blow rounding up."""
    settings = {"optim": "sgd", "learning_rate": 0.1, **settings}
    single, _ = trained(make, methods, per_device_train_batch_size=4, **settings)
    several, _ = trained(
        make, methods, per_device_train_batch_size=1, gradient_accumulation_steps=4, **settings
    )
    if not (apart := largest_difference(single, several)) < 2e-6:
        raise LawBroken(
            "expected a difference below 2e-06 between one batch of 4 and 4 micro-batches of 1, "
            f"got {apart:.2g}"
        )


def no_state_leaks(
    make: Make, methods: Methods, *, first: Mapping[str, Tensor] | None = None
) -> None:
    """The same method value in two runs gives the same weights as in one.

    Args:
        make: see `Make`.
        methods: trained with twice.
        first: the weights of a run with these values, where they are known.
    """
    expected = trained(make, methods)[0] if first is None else first
    second = trained(make, methods)[0]
    if (apart := largest_difference(expected, second)) != 0:
        raise LawBroken(
            "expected two runs with the same method object to give equal weights, got a difference "
            f"of {apart:.2g}. Keep the state of a run in the object that start() returns"
        )


def serialises(methods: Methods) -> None:
    """A method is made again of what a configuration or a record says of it."""
    settings = json.loads(json.dumps([method.setting() for method in methods]))
    again, problems = parse_retention(settings, load=False)
    if problems or again != list(methods):
        raise LawBroken(
            f"expected an equal method after rebuilding it from {settings}, got {problems or again}"
        )
    if not methods[-1].label().startswith(methods[-1].name):
        raise LawBroken(
            f"expected a label that begins with {methods[-1].name}, got {methods[-1].label()!r}"
        )


def documents_itself(cls: type[RetentionMethod]) -> None:
    """A summary, a docstring, and a help text for every parameter; a method of the package also its
    source and references."""
    lacking = [n for n in ("title", "summary") if not getattr(cls, n, "")]
    if is_ours(cls) and len(cls.source) <= 20:
        lacking.append("source (a paper and its section)")
    if not cls.__doc__ or (
        is_ours(cls) and not ("References" in cls.__doc__ or "paper" in cls.__doc__)
    ):
        lacking.append("a docstring with 'References: ...'" if is_ours(cls) else "a docstring")
    for setting in settings_of(cls):
        if len(setting.help) <= 10:
            lacking.append(f"a docstring under {setting.name}")
    parameters = {field.name for field in dataclasses.fields(cls)}
    for name in cls.strength:
        if name not in parameters:
            lacking.append(f"a parameter {name}, as named in the class attribute `strength`")
    if lacking:
        raise LawBroken(f"expected {'; '.join(lacking)}; got none")


def keeps_what_it_declares(trainer: Any, methods: Methods) -> None:
    """No more is held beside the parameters than `copies()` says, so that the memory of a dry run
    can be believed.

    Args:
        trainer: has trained with the methods.
        methods: what declares.
    """
    parameters = dict(trainer.model.named_parameters())
    of_model = {p.data_ptr() for p in parameters.values()}
    sizes: dict[int, int] = {}
    for active in trainer.active:
        for tensor in _tensors(vars(active)):
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    beside = sum(size for pointer, size in sizes.items() if pointer not in of_model)
    trained_ones = [p for p in parameters.values() if p.requires_grad]
    declared = 0
    for copy in itertools.chain(*(method.copies() for method in methods)):
        if copy.place != "disk":
            itemsize = getattr(torch, copy.dtype).itemsize if copy.dtype else None
            declared += sum(p.numel() * (itemsize or p.element_size()) for p in trained_ones)
    if beside > 1.05 * declared + 4096:
        raise LawBroken(
            f"expected a run to hold at most the {declared:,} bytes that copies() declares, got "
            f"{beside:,} bytes in memory. Return a WeightCopy for each copy from copies()"
        )


def _tensors(value: Any, depth: int = 4) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if depth == 0:
        return []
    inside = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    return list(itertools.chain(*(_tensors(item, depth - 1) for item in inside)))


# ---------------------------------------------------------------------------------- a user's method


def check_laws(method: RetentionMethod) -> dict[str, str | None]:
    """All laws on one configured method, on a model built in memory; some ten seconds.

    Returns:
        By law, in a few words: why it is broken; None where it holds.

    Raises nothing of the method's own: an error in its code is the reason of the law that met it.
    """
    off = _switched_off(method)
    with scratch_folder(None, "holdfast-laws-") as folder, quiet_transformers():

        def make(methods: Methods, **settings: Any) -> Any:
            return _trainer(folder, methods, **settings)

        @functools.cache
        def active() -> Any:
            trainer = make([method])
            trainer.train()
            return trainer

        direct = trained(make, [])
        laws: list[tuple[str, Callable[[], object]]] = [
            ("documents itself", lambda: documents_itself(type(method))),
            ("can be rebuilt from its configuration", lambda: serialises([method])),
            (
                "zero strength is direct fine-tuning, bit for bit",
                lambda: _off(make, method, off, direct),
            ),
            (
                "changes the run when it is on",
                lambda: active_changes_the_run(
                    make, [method], without=direct[0], active=weights(active())
                ),
            ),
            ("gives the same weights when it is resumed", lambda: resumes(make, [method])),
            (
                "carries no state from one run to the next",
                lambda: no_state_leaks(make, [method], first=weights(active())),
            ),
            (
                "gradient accumulation changes nothing but rounding",
                lambda: accumulates(make, [method]),
            ),
            (
                "holds no more memory than it declares",
                lambda: keeps_what_it_declares(active(), [method]),
            ),
        ]
        return {name: _reason(law) for name, law in laws}


def _reason(law: Callable[[], object]) -> str | None:
    try:
        law()
    except (LawBroken, HoldfastError) as error:
        return str(error)
    except Exception as error:  # the user's code may raise anything
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    return None


def _switched_off(method: RetentionMethod) -> RetentionMethod | None:
    """The method with its leading strength at 0, or at 1 where that is what switches it off; None
    without a strength."""
    if not method.strength:
        return None
    leading = method.strength[0]
    at_0 = dataclasses.replace(method, **{leading: 0.0})
    at_1 = dataclasses.replace(method, **{leading: 1.0})
    return at_1 if at_1.off and not at_0.off else at_0


def _off(make: Make, method: RetentionMethod, off: RetentionMethod | None, direct: Any) -> None:
    if off is None:
        raise LawBroken(
            f"expected {type(method).__name__}.strength to name the parameter that sets the "
            "method's strength, got nothing"
        )
    off_is_direct(make, [off], direct=direct)


def _trainer(folder: Path, methods: Methods, **settings: Any) -> Any:
    from datasets import Dataset, disable_progress_bars
    from transformers import PrinterCallback
    from trl import SFTConfig

    from holdfast.data.formats import rows_by_name
    from holdfast.training.tiny import SENTENCES, build_model, build_tokenizer
    from holdfast.training.trainers import SFTRetentionTrainer

    disable_progress_bars()
    tokenizer = build_tokenizer()
    rows = []
    for number in range(8):
        for sentence in SENTENCES:
            rows.append({"text": f"{number}. {sentence}"})
    trainer = SFTRetentionTrainer(
        model=build_model(),
        args=SFTConfig(
            **{"output_dir": str(folder / "run"), "max_length": 64, **SETTINGS, **settings}
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        retain=list(methods),
        load_rows=rows_by_name(tokenizer),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
