"""What `holdfast evaluate` is asked to measure and how, as one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from holdfast.config.declare import MAX_SEED, Meta
from holdfast.config.values import Refused
from holdfast.errors import Problem
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.shipped import changed, read_suites
from holdfast.evaluation.suite import decode_evaluation


def _pair(word: str) -> tuple[str, str]:
    task, equals, file = word.partition("=")
    if not equals or not task or not file:
        raise ValueError("expected TASK=FILE, as in arc_easy=ARC-Easy.jsonl.")
    return task, file


def _files(value: Any) -> dict[str, str]:
    """A file by task, out of a YAML's mapping or the pairs of a command line."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list) or not all(
        isinstance(pair, tuple) and isinstance(pair[1], str) for pair in pairs
    ):
        raise ValueError("a file for each task, as in {arc_easy: ARC-Easy.jsonl}")
    files: dict[str, str] = {}
    for task, file in pairs:
        if str(task) in files:
            raise Refused(Problem((), f"two files for {task}: {files[task]} and {file}."))
        files[str(task)] = file
    return files


_FILES = Meta(
    repeatable=True,
    parse=_files,
    parse_word=_pair,
    metavar="TASK=FILE ...",
    json_schema=lambda: {"type": "object", "additionalProperties": {"type": "string"}},
)


@dataclass(frozen=True, kw_only=True)
class WhatSettings:
    """What is measured."""

    settings_group: ClassVar[str] = "what to measure"

    suite: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="NAME")] = ()
    """Shipped suites (--help suites) or YAML files."""
    tasks: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="TASK")] = ()
    """Tasks and groups of lm-evaluation-harness, or task YAMLs."""
    answer_distribution: Annotated[
        tuple[str, ...],
        Meta(repeatable=True, metavar="TASK", section="entries", former=("answers",)),
    ] = ()
    """Tasks whose answer distribution is measured: probability mass on the options, and entropy."""
    perplexity: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="FILE")] = ()
    """Held-out text, in any format that 'holdfast train' reads."""
    memorisation: Annotated[
        tuple[str, ...], Meta(repeatable=True, metavar="FILE", section="entries")
    ] = ()
    """Text to measure memorisation on: the share of tokens that are the model's most likely
    ones."""
    skip: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="ENTRY", section="entries")] = ()
    """Entries of the suites to leave out."""


@dataclass(frozen=True, kw_only=True)
class HowSettings:
    """How it is measured."""

    settings_group: ClassVar[str] = "how"
    settings_section: ClassVar[str] = "how"

    data: Annotated[dict[str, str], _FILES] = field(default_factory=dict)
    """A local file instead of a task's data set."""
    fewshot_data: Annotated[dict[str, str], _FILES] = field(default_factory=dict)
    """A local file with a task's few-shot examples (default: the file with the questions)."""
    limit: Annotated[int | None, Meta(ge=1)] = None
    """Only the first N questions of each task (and subtask), and the first N documents of each
    text."""
    num_fewshot: Annotated[int | None, Meta(ge=0)] = None
    """Number of few-shot examples, for all tasks (default: as in suite and task)."""
    apply_chat_template: bool | None = None
    """Put the questions in the tokenizer's chat template (default: as in suite and task)."""
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(metavar="'{enable_thinking: false}'")
    ] = None
    """Variables of the chat template, for all entries (default: as in the suite)."""
    allow_code_execution: bool | None = None
    """Run programs written by the model, in the sandbox (default: as in the suite, else false)."""
    batch_size: Annotated[int | None, Meta(ge=1)] = None
    """Batch size of generation. Compare models at the same batch size (default: as in the suite,
    else 8)."""
    confidence: Annotated[float | None, Meta(gt=0, lt=1)] = None
    """Confidence level of the intervals (default: as in the suite, else 0.95)."""
    seed: Annotated[int | None, Meta(ge=0, le=MAX_SEED)] = None
    """Random seed of examples, sampling and resampling (default: as in the suite, else 0)."""


NOTHING = "nothing to measure: expected --suite NAME, --tasks TASK ... or --perplexity FILE ..."


@dataclass(frozen=True, kw_only=True)
class PlanRequest(HowSettings, WhatSettings):
    """Suites and single entries, with settings for all of them."""


def plan_of(
    request: PlanRequest, *, nothing: str = NOTHING
) -> tuple[EvaluationPlan, list[Problem]]:
    """The plan that was asked for, and everything that is wrong with it, by option.

    Args:
        request: what was asked for.
        nothing: the sentence where that is nothing.
    """
    settings = {}
    for key in _SETTINGS:
        if (value := getattr(request, key)) is not None:
            settings[key] = value
    # what the options replace, and what only training runs read
    mapping, problems = read_suites(request.suite, decided=["before", *settings])
    mistakes = [Problem("suite", text) for text in problems]
    of_suites = mapping.get("measured", [])
    options, entries = [], []
    for option in ("tasks", "answer_distribution", "perplexity", "memorisation"):
        kind = "task" if option == "tasks" else option
        for text in getattr(request, option):
            # tasks may be separated by commas, as the harness has them; a file's name may have some
            for word in [text] if Path(text).exists() else text.split(","):
                if word:
                    options.append(option)
                    entries.append({kind: word})
    if entries:
        mapping["measured"] = [*of_suites, *entries]
    if not any(isinstance(value, list) and value for value in mapping.values()) and not problems:
        mistakes.append(Problem((), nothing))
    mapping |= settings
    mapping["skip"] = [*mapping.get("skip", ()), *request.skip]
    for key in ("data", "fewshot_data"):
        mapping[key] = {**mapping.get(key, {}), **getattr(request, key)}
    plan, wrong = decode_evaluation(mapping)
    mistakes += [_of_option(mistake, options, len(of_suites)) for mistake in wrong]
    plan, _ = changed(
        plan,
        num_fewshot=request.num_fewshot,
        apply_chat_template=request.apply_chat_template,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    if request.skip and not plan.entries and not mistakes:
        text = f"nothing is left to measure without {', '.join(request.skip)}."
        mistakes.append(Problem("skip", text))
    return plan, mistakes


_SETTINGS = ("batch_size", "confidence", "seed", "limit", "allow_code_execution")
"""Of suites, which options replace."""


def _of_option(problem: Problem, options: Sequence[str], first: int) -> Problem:
    """A mistake of a plan as one of the option that it came from.

    Args:
        mistake: of the plan.
        options: of the entries that options add to "measured".
        first: number of the first of them there.
    """
    path = problem.path
    if path[:1] == ("measured",) and options:
        number = int(path[1]) - first if len(path) > 1 else 0
        if number >= 0:
            return Problem(options[number], problem.text)
    if path and path[0] in (*_SETTINGS, "skip", "data", "fewshot_data"):
        return problem
    return Problem("suite", problem)
