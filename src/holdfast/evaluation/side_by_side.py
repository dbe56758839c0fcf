"""The user's own prompts, answered by two models and put side by side (`compare --prompts`).

They are asked as a `behaviour` entry asks them: greedily, in one folder for the file, where a
second call finds them answered. Nothing is judged: an entry over the same file compares figures.
Both models are asked in one way, in their chat templates where both have one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, NotFinite, Problem, UserError
from holdfast.evaluation.compare.folders import weights_of
from holdfast.evaluation.compare.request import Side
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.kinds.behaviour import BehaviourEntry
from holdfast.evaluation.text.question_files import RowMistakes, prompt_rows, row_messages
from holdfast.records.comparison import Answer, AnsweredPrompt, Answers
from holdfast.records.evaluation import Evaluation, EvaluationFolder

if TYPE_CHECKING:
    from holdfast.support.progress import ProgressDisplay

SUITE = "prompts"


def problems_of_prompts(file: Path) -> list[Problem]:
    """What is wrong with a file of prompts, whoever answers them."""
    if not file.is_file():
        return [Problem("prompts", f"expected a file of prompts, but {file} is not a file.")]
    try:
        read_messages(file)
    except UserError as error:
        return [Problem("prompts", str(error))]
    return []


def read_messages(file: Path) -> list[list[dict[str, Any]]]:
    """What every row of a file asks.

    Raises:
        DataError: there are no rows, or some hold no prompt.
    """
    entry = BehaviourEntry(suite=SUITE, name=file.stem, data=os.path.abspath(file))
    mistakes = RowMistakes(str(file))
    prompts = []
    for number, row in enumerate(prompt_rows(entry)):
        prompts.append(row_messages(row, number, mistakes) or [])
    mistakes.check()
    return prompts


def problems_of_sides(sides: Sequence[Side]) -> list[Problem]:
    """Why measured models cannot be asked, as far as it is known before they are loaded."""
    problems = []
    for side in sides:
        reason = ""
        if side.log is not None:
            reason = "is a log of another tool, without a model"
        elif not side.model:
            reason = "does not name the folder of its model, or the folder no longer exists"
        if reason:
            advice = "so it cannot answer prompts. Name the model itself instead"
            problems.append(Problem("prompts", f"{side.path} {reason}, {advice}."))
    return problems


def answers_of(
    file: Path,
    models: Sequence[str],
    folder: Path,
    *,
    max_new_tokens: int,
    display: ProgressDisplay,
) -> tuple[Answers, list[Side]]:
    """What two models answer to the prompts of a file.

    Args:
        file: rows of prompt or messages.
        models: folders or hub ids, the one before first.
        folder: where the answers are kept; those of this file in a folder of its name.
        max_new_tokens: of an answer.
        display: where progress is shown.

    Returns:
        The answers, and the two models with the folders that hold them.

    Raises:
        ConfigError: a model or the file does not fit; nothing is asked then.
        Interrupted: Ctrl-C or SIGTERM; the same call continues.
    """
    from holdfast.evaluation.session import evaluate_models, requests_of

    bare = [model for model in models if not _has_chat_template(model)]
    entry = BehaviourEntry(
        suite=SUITE,
        name=file.stem,
        data=os.path.abspath(file),
        max_new_tokens=max_new_tokens,
        apply_chat_template=not bare,
    )
    requests = requests_of(models)
    out = folder / file.stem
    not_finite = []
    try:
        evaluate_models(requests, EvaluationPlan(entries=(entry,)), out, display=display)
    except NotFinite as error:  # shown beside the answers
        not_finite.append(str(error))
    sides, evaluations, rows = [], [], []
    for request in requests:
        measured = EvaluationFolder(out / request.label)
        evaluation = measured.find(SUITE, file.stem)
        assert evaluation is not None, f"{measured} has no answers"
        sides.append(Side(folder=measured, label=request.label, model=request.name))
        evaluations.append(evaluation)
        rows.append(measured.samples(SUITE, file.stem))
    prompts = []
    for messages, before, after in zip(read_messages(file), *rows, strict=True):
        prompts.append(
            AnsweredPrompt(messages=messages, before=_answer(before), after=_answer(after))
        )
    notes = _notes(sides, evaluations)
    if bare:
        names = " and ".join(Path(model).name for model in bare)
        has = "have no chat template" if len(bare) == 2 else "has no chat template"
        notes.append(f"Prompts: {names} {has}, so both models read the prompts as they are.")
    answers = Answers(
        file=file.name,
        max_new_tokens=max_new_tokens,
        chat_template=not bare,
        prompts=prompts,
        notes=notes,
        not_finite=not_finite,
    )
    return answers, sides


def _has_chat_template(model: str) -> bool:
    """True where nobody can tell: `evaluate_models` says what is wrong with the model."""
    from holdfast.models import load_tokenizer

    try:
        tokenizer = load_tokenizer(model)
    except UserError:
        return True
    return bool(getattr(tokenizer, "chat_template", None))


def _answer(row: dict[str, Any]) -> Answer:
    return Answer(
        text=row["output"],
        tokens=row["reply_tokens"],
        ended=row["turn_ended"] == 1,
        open_thought=row["thoughts_closed"] == 0,
    )


def _notes(sides: Sequence[Side], evaluations: Sequence[Evaluation]) -> list[str]:
    """What was found while they answered, said once where both have it."""
    texts: dict[str, list[str]] = {}
    for side, evaluation in zip(sides, evaluations, strict=True):
        for note in evaluation.settings.get("notes") or ():
            texts.setdefault(note, []).append(side.label)
    notes = []
    for note, labels in texts.items():
        of = "" if len(labels) == len(sides) else f"{labels[0]}: "
        notes.append(f"Prompts: {of}{note}")
    return notes


def check_weights(sides: Sequence[Side]) -> None:
    """Looks whether the models that measured sides name are still those that were measured.

    Raises:
        ConfigError: one has other weights now, or was measured in a form that its folder does not
            have.
    """
    problems = []
    for side in sides:
        about = side.folder.all()[0].model
        changes = _changed_form(about)
        if changes:
            problems.append(
                f"{side.path} was measured on {side.model} {changes}. No folder has the model in "
                "this form, so it cannot answer prompts. Name two models."
            )
        elif not _is_same(side):
            problems.append(
                f"{side.path} was measured on other weights than {side.model} has now, so the "
                "answers would come from another model. Evaluate it again, or name two models."
            )
    if problems:
        raise ConfigError([Problem("prompts", problem) for problem in problems])


def _changed_form(model: dict[str, Any]) -> str:
    """What a run made of stored weights before it measured them, dtypes aside; empty: nothing."""
    from holdfast.models import DTYPES

    changes = [change for change in model.get("loaded") or () if change not in DTYPES]
    if model.get("added_tokens"):
        changes.append("with added tokens")
    return ", ".join(map(str, changes))


def _is_same(side: Side) -> bool:
    """Whether the weights on disk are those that were measured, in whatever dtype."""
    from holdfast.checkpoints.reader import checkpoint_hash
    from holdfast.models import DTYPES, model_folder, weights_hash

    weights = weights_of(side.folder.all()[0])
    folder = model_folder(side.model)
    if folder is None:  # of the hub, and not here yet
        return True
    if weights == checkpoint_hash(folder):
        return True
    return any(weights == weights_hash(side.model, dtype=dtype) for dtype in DTYPES)
