"""What an update would do, as the text that `holdfast update --dry_run` prints."""

from __future__ import annotations

from pathlib import Path

from holdfast.studies.update.checks import check_measuring, check_models, whole_plan
from holdfast.studies.update.new_text import corpus_request
from holdfast.studies.update.plan import UpdateConfig
from holdfast.support.token_counts import shown_tokens


def plan_text(config: UpdateConfig) -> list[str]:
    """What would be done, in lines, once models, corpus and tasks are seen to be sound."""
    notes, _ = check_models(config)
    check_measuring(config)
    corpus_request(config, Path(config.output_dir) / "corpus" / "all.jsonl")
    budget = config.request.budgets[0]
    amount = "all of it" if budget is None else f"{shown_tokens(budget)} tokens"
    text = [f"New text: {', '.join(config.request.corpus)} ({amount})"]
    for number, model in enumerate(config.models(), 1):
        text.append(f"{number}. {model.label}" + ("" if model.continued else "  (as it is)"))
    if config.request.evaluation:
        entries = ", ".join(f"{entry.suite}/{entry.name}" for entry in whole_plan(config).entries)
        text.append(f"Measured of each: the held-out new text, {entries}")
    else:
        text.append(
            "Measured of each: the held-out new text alone. Add evaluation: to see what was kept, such as "
            "--evaluation instruction_residual."
        )
    return [*text, *(f"Note: {note}" for note in notes), f"Folder: {config.output_dir}"]
