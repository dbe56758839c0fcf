"""Merging checkpoints: one request, checked and planned, then built.

The method is a value (`methods.registry.merge_method`), the policies say what happens where the checkpoints differ
(`plan`), and `build` does it. Adapters are models too: they are merged into their base on the fly.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoints.build import Built, Prepared, Slots
from holdfast.checkpoints.chat_template import asked_template
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.methods.linear import method_among
from holdfast.checkpoints.methods.protocol import MergeMethod
from holdfast.checkpoints.named import located
from holdfast.checkpoints.plan import Plan, Policies, make_plan
from holdfast.checkpoints.sources import Source, listing
from holdfast.errors import ConfigError, Problem, ShapeError

Name = str | os.PathLike[str]


def prepare_merge(
    method: str | MergeMethod,
    models: Sequence[Name],
    *,
    base: Name | None = None,
    fisher: Sequence[Name] = (),
    layout: Name | None = None,
    tokenizer: Name | None = None,
    adapter_base: Name | None = None,
    dtype: str | None = None,
    policies: Policies | None = None,
    chat_template: str | None = None,
    **parameters: Any,
) -> Prepared:
    """Checks and plans a merge.

    Args:
        method: a name of `METHODS`, a class of one's own (`my_method.py:Name`), or a method value.
        models: folders, hub ids or adapters, in the order of the weights.
        base: the common ancestor, for methods that take one.
        fisher: Fisher information, one checkpoint a model, for methods that take it.
        layout: the parent whose names, dtypes, shards and configuration the output takes: one of `base` and `models`.
            Default: the base, else the first model.
        tokenizer: the parent whose vocabulary, tokenizer, chat template and generation configuration it takes. Default:
            the layout.
        adapter_base: the model that adapters belong to; default: `base`, else the one that each adapter names.
        dtype: of floating-point tensors ("bfloat16", ...). Default: the layout's, tensor by tensor.
        policies: what to do where the checkpoints differ. Default: refuse.
        chat_template: Jinja, a file of it, "chatml", or "auto" (the one that most models have). Default: the tokenizer
            parent's.
        **parameters: of the method, where `method` is a name.

    Raises:
        ConfigError: an unknown method or parameter, values out of range, the wrong number of models; all at once.
        ModelError: a checkpoint cannot be read.
        ShapeError: the checkpoints do not fit together; all differences at once.
    """
    from holdfast.checkpoints.methods.registry import merge_method

    value = merge_method(method, **parameters) if isinstance(method, str) else method
    problems = request_problems(value, models, base=base, fisher=fisher, layout=layout, tokenizer=tokenizer)
    if problems:
        raise ConfigError(problems)
    uses_base = value.needs_base
    named, roles = _parents(value, models, base)
    layout_at = parent_at("layout", layout, named, roles, problems, default=0)
    tokenizer_at = parent_at("tokenizer", tokenizer, named, roles, problems, default=layout_at)
    inner = adapter_base if adapter_base is not None else base
    sources = [
        open_source(name, base=inner if role != "base" else None) for name, role in zip(named, roles, strict=True)
    ]
    extras = [open_source(name) for name in fisher]
    first = 1 if uses_base else 0
    slots = Slots(
        base=0 if uses_base else None,
        models=tuple(range(first, len(sources))),
        extras=tuple(range(len(sources), len(sources) + len(extras))),
    )
    plan = make_plan(
        [*sources, *extras],
        [*roles, *(f"Fisher {i}" for i in range(1, len(extras) + 1))],
        layout=layout_at,
        base=slots.base,
        policies=policies,
        optional=dict(zip(slots.extras, slots.models, strict=False)),
        means=True,
        dtype=dtype,
        vocabulary_of=tokenizer_at,
        passes=1 + value.rounds(),
    )
    unmatched = unmatched_problems(plan, value, slots)
    if unmatched:
        raise ShapeError(*unmatched)
    request = {"dtype": dtype, "policies": policies or Policies(), "tokenizer": roles[tokenizer_at]}
    template = asked_template(chat_template, sources) if chat_template is not None else None
    if template is not None:
        request["chat_template"] = template
    return Prepared(
        command="merge",
        plan=plan,
        recipe=value,
        slots=slots,
        request=request,
        companions=companions_of(plan, layout_at, tokenizer_at),
        chat_template=template,
    )


def unmatched_problems(plan: Plan, method: MergeMethod, slots: Slots) -> list[str]:
    """A sentence for tensors that only models have whose weights make no mean, such as one of weight 0 or below."""
    alone: dict[tuple[int, ...], list[str]] = {}
    for job in plan.jobs:
        if job.action in ("mean", "copy"):
            alone.setdefault(job.owners(slots.models), []).append(job.name)
    return [
        f"{len(names)} tensors are only in {listing([plan.roles[slots.models[i]] for i in owners])}: "
        f"{listing(names, 4)}. To keep them is to take the mean of these models, but {'; '.join(wrong)}. Choose other "
        f"weights, or --unmatched drop, which leaves out what {plan.roles[plan.layout]} lacks."
        for owners, names in alone.items()
        if (wrong := method_among(method, owners, len(slots.models)).problems(len(owners)))
    ]


def request_problems(
    method: MergeMethod,
    models: Sequence[Name],
    *,
    base: Name | None = None,
    fisher: Sequence[Name] = (),
    layout: Name | None = None,
    tokenizer: Name | None = None,
) -> list[Problem]:
    """What is wrong with a request before any checkpoint is opened, one sentence each; arguments as of
    `prepare_merge`."""
    problems = method.problems(len(models))
    if method.needs_base and base is None:
        problems.append(Problem("base", f"{method.name} needs a base: the model that the others were tuned from"))
    if base is not None and not method.needs_base:
        problems.append(Problem("base", f"{method.name} takes no base; name it among the models if it is to take part"))
    if method.extras is None and fisher:
        problems.append(Problem("fisher", f"{method.name} takes no Fisher information"))
    if method.extras is not None and len(fisher) != len(models):
        problems.append(
            Problem(
                "fisher",
                f"{method.name} needs Fisher information for each model: expected {len(models)} checkpoints, got "
                f"{len(fisher)}",
            )
        )
    named, roles = _parents(method, models, base)
    for key, wanted in (("layout", layout), ("tokenizer", tokenizer)):
        parent_at(key, wanted, named, roles, problems, default=0)
    return problems


def _parents(method: MergeMethod, models: Sequence[Name], base: Name | None) -> tuple[list[Name], list[str]]:
    """The checkpoints that a merge reads, in order, and what each is."""
    bases = [base] if method.needs_base and base is not None else []
    return [*bases, *models], [*("base" for _ in bases), *(f"model {i}" for i in range(1, len(models) + 1))]


def merge(
    models: Sequence[Name],
    output_dir: Name,
    *,
    method: str | MergeMethod = "linear",
    overwrite: bool = False,
    sync: bool = True,
    workers: int | None = None,
    **request: Any,
) -> Built:
    """Merges checkpoints into a new folder, at about the speed of copying one.

    ```python
    merge(["math", "code"], "both", method="ties", base="base", density=0.3)
    ```

    Args:
        models: folders, hub ids or adapters.
        output_dir: the folder to write; complete or absent, whatever happens meanwhile.
        method: a name of `METHODS` (`linear`, `ties`, `model_stock`, ...), a class of one's own, or a method value.
        overwrite: replace a folder that is there.
        sync: put everything on the disk before the folder gets its name.
        workers: threads; None: all cores.
        **request: everything that `prepare_merge` takes: `base`, `weights`, `density`, `dtype`, `policies`, ...

    Raises:
        HoldfastError: see `prepare_merge` and `build.build`.
    """
    return prepare_merge(method, models, **request).write(output_dir, overwrite=overwrite, sync=sync, workers=workers)


def parent_at(
    key: str, wanted: Name | None, named: Sequence[Name], roles: Sequence[str], problems: list[Problem], *, default: int
) -> int:
    """The index of a parent that a request names by role ("base", "model 2", "2") or by the same name as among the
    models."""
    if wanted is None:
        return default
    text = os.fspath(wanted)
    for index, (name, role) in enumerate(zip(named, roles, strict=True)):
        if text in (role, role.removeprefix("model "), os.fspath(name)) or (
            Path(located(text)).is_dir() and os.path.realpath(located(text)) == os.path.realpath(located(name))
        ):
            return index
    problems.append(Problem(key, f"expected one of the parents ({', '.join(roles)}, or its folder), got {text}"))
    return default


def companions_of(plan: Plan, layout: int, tokenizer: int) -> tuple[Source, ...]:
    """Whose files travel beside the weights: the layout's, then, over them, the tokenizer parent's."""
    return tuple(plan.sources[i] for i in dict.fromkeys([layout, tokenizer]))
