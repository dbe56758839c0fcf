"""Merging checkpoints: one request, checked and planned, then built.

The method is a value (`methods.registry.merge_method`), the policies say what happens where the
checkpoints differ (`plan`), and `build` does it. Adapters are models too: they are merged into
their base on the fly.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.build import Built, Prepared
from holdfast.checkpoints.chat_template import asked_template
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.methods.linear import method_among
from holdfast.checkpoints.methods.protocol import MergeMethod
from holdfast.checkpoints.named import located
from holdfast.checkpoints.parents import Parents
from holdfast.checkpoints.plan import Plan, make_plan
from holdfast.checkpoints.policies import Policies
from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError, Problem, ShapeError

Name = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """What a merge may be told beside its method and its models."""

    base: Name | None = None
    """The common base, for methods that use one."""
    fisher: Sequence[Name] = ()
    """Fisher information, one checkpoint per model, for methods that use it."""
    layout: Name | None = None
    """The parent that gives the output its names, dtypes, shards and configuration: `base` or one
    of the models. Default: the base, else the first model."""
    tokenizer: Name | None = None
    """The parent that gives the output its vocabulary, tokenizer, chat template and generation
    configuration. Default: the layout."""
    adapter_base: Name | None = None
    """Base of the adapters. Default: `base`, else the one that each adapter names."""
    dtype: str | None = None
    """Dtype of floating-point tensors ("bfloat16", ...). Default: each tensor's dtype in
    the layout."""
    policies: Policies | None = None
    """What to do if the checkpoints differ. Default: refuse."""
    chat_template: str | None = None
    """Chat template: Jinja text, a Jinja file, "chatml", or "auto" (the one that most inputs
    have). Default: the tokenizer parent's."""


def prepare_merge(method: str | MergeMethod, models: Sequence[Name], **request: Any) -> Prepared:
    """Checks and plans a merge.

    Args:
        method: a name of `METHODS`, a class of one's own (`my_method.py:Name`), or a method value.
        models: folders, hub ids or adapters, in the order of the weights.
        **request: the fields of `MergeOptions`; what else there is are parameters of the method,
            where `method` is a name.

    Raises:
        ConfigError: an unknown method or parameter, values out of range, the wrong number of
            models; all at once.
        ModelError: a checkpoint cannot be read.
        ShapeError: the checkpoints do not fit together; all differences at once.
    """
    from holdfast.checkpoints.methods.registry import merge_method

    names = {field.name for field in dataclasses.fields(MergeOptions)}
    options = MergeOptions(**{name: value for name, value in request.items() if name in names})
    parameters = {name: value for name, value in request.items() if name not in names}
    if isinstance(method, str):
        method = merge_method(method, **parameters)
    problems = request_problems(method, models, options)
    if problems:
        raise ConfigError(problems)
    parents = _opened(method, models, options)
    plan = make_plan(
        parents, options.policies, means=True, dtype=options.dtype, passes=1 + method.passes()
    )
    unmatched = unmatched_problems(plan, method)
    if unmatched:
        raise ShapeError(*unmatched)
    record: dict[str, Any] = {
        "dtype": options.dtype,
        "policies": options.policies or Policies(),
        "tokenizer": plan.roles[parents.vocabulary],
    }
    template = None
    if options.chat_template is not None:
        template = asked_template(
            options.chat_template, [parents.sources[index] for index in parents.members]
        )
        record["chat_template"] = template
    return Prepared(
        command="merge", plan=plan, recipe=method, request=record, chat_template=template
    )


def _opened(method: MergeMethod, models: Sequence[Name], options: MergeOptions) -> Parents:
    """The checkpoints that a merge reads."""
    names, roles = _parents(method, models, options.base)
    layout = _index_of("layout", options.layout, names, roles, [], default=0)
    tokenizer = _index_of("tokenizer", options.tokenizer, names, roles, [], default=layout)
    adapter_base = options.adapter_base if options.adapter_base is not None else options.base
    sources = []
    for name, role in zip(names, roles, strict=True):
        sources.append(open_source(name, base=None if role == "base" else adapter_base))
    first = 1 if method.needs_base else 0
    extras = {}
    for number, name in enumerate(options.fisher):
        extras[len(sources)] = first + number
        sources.append(open_source(name))
        roles.append(f"Fisher {number + 1}")
    return Parents(
        sources=tuple(sources),
        roles=tuple(roles),
        layout=layout,
        base=0 if method.needs_base else None,
        extras=extras,
        tokenizer=tokenizer,
    )


def unmatched_problems(plan: Plan, method: MergeMethod) -> list[str]:
    """A sentence for tensors that only models have whose weights make no mean, such as one of
    weight 0 or below."""
    models = plan.parents.models
    by_owners: dict[tuple[int, ...], list[str]] = {}
    for job in plan.jobs:
        if job.action in ("mean", "copy"):
            by_owners.setdefault(job.owners(models), []).append(job.name)
    problems = []
    for owners, names in by_owners.items():
        wrong = method_among(method, owners, len(models)).problems(len(owners))
        if wrong:
            holders = listing([plan.roles[models[number]] for number in owners])
            problems.append(
                f"{len(names)} tensors are only in {holders}: {listing(names, 4)}. With "
                "--unmatched keep, the output gets their mean over these models. This is "
                f"impossible here: {'; '.join(wrong)}. Choose other weights, or use --unmatched "
                f"drop, which leaves out the tensors that {plan.roles[plan.layout]} lacks."
            )
    return problems


def request_problems(
    method: MergeMethod, models: Sequence[Name], options: MergeOptions
) -> list[Problem]:
    """What is wrong with a request before any checkpoint is opened, one sentence each."""
    problems = method.problems(len(models))
    if method.needs_base and options.base is None:
        problems.append(
            Problem(
                "base", f"{method.name} needs a base: the model that the others were tuned from"
            )
        )
    if options.base is not None and not method.needs_base:
        problems.append(
            Problem(
                "base",
                f"{method.name} uses no base. To merge the base, list it among the models",
            )
        )
    if method.extras is None and options.fisher:
        problems.append(Problem("fisher", f"{method.name} uses no Fisher information"))
    if method.extras is not None and len(options.fisher) != len(models):
        text = (
            f"{method.name} needs Fisher information for each model: expected {len(models)} "
            "checkpoints"
        )
        problems.append(Problem("fisher", f"{text}, got {len(options.fisher)}"))
    names, roles = _parents(method, models, options.base)
    for key, parent in (("layout", options.layout), ("tokenizer", options.tokenizer)):
        _index_of(key, parent, names, roles, problems, default=0)
    return problems


def _parents(
    method: MergeMethod, models: Sequence[Name], base: Name | None
) -> tuple[list[Name], list[str]]:
    """The checkpoints that a merge reads, in order, and what each is."""
    roles = [f"model {number}" for number in range(1, len(models) + 1)]
    if not method.needs_base or base is None:
        return list(models), roles
    return [base, *models], ["base", *roles]


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
    """Merges checkpoints into a new folder, about as fast as copying one.

    ```python
    merge(["math", "code"], "both", method="ties", base="base", density=0.3)
    ```

    Args:
        models: folders, hub ids or adapters.
        output_dir: the folder to write. It appears only once it is complete, even if the merge is
            interrupted.
        method: a name in `METHODS` (`linear`, `ties`, `model_stock`, ...), your own class, or a
            method value.
        overwrite: replace an existing folder.
        sync: flush everything to the disk before the folder gets its name.
        workers: number of threads; None: all cores.
        **request: the fields of `MergeOptions` (`base`, `dtype`, `policies`, ...) and parameters of
            the method (`weights`, `density`, ...).

    Returns:
        The folder that was written, with its record and timings.

    Raises:
        HoldfastError: see `prepare_merge` and `build.build`.
    """
    return prepare_merge(method, models, **request).write(
        output_dir, overwrite=overwrite, sync=sync, workers=workers
    )


def _index_of(
    key: str,
    parent: Name | None,
    names: Sequence[Name],
    roles: Sequence[str],
    problems: list[Problem],
    *,
    default: int,
) -> int:
    """The index of a parent that a request names by role ("base", "model 2", "2") or by the same
    name as among the models."""
    if parent is None:
        return default
    text = os.fspath(parent)
    for index, (name, role) in enumerate(zip(names, roles, strict=True)):
        if text in (role, role.removeprefix("model "), os.fspath(name)) or _same_folder(
            located(text), located(name)
        ):
            return index
    problems.append(
        Problem(key, f"expected one of the parents ({', '.join(roles)}, or its folder), got {text}")
    )
    return default


def _same_folder(folder: str, other: str) -> bool:
    return Path(folder).is_dir() and os.path.realpath(folder) == os.path.realpath(other)
