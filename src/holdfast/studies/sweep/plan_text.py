"""What a sweep would do, as the text that `holdfast sweep --dry_run` prints."""

from __future__ import annotations

from holdfast.printable import lines
from holdfast.studies.sweep.study import StudyConfig

LISTED_TRIALS = 60


def plan_text(config: StudyConfig) -> str:
    """What a study would do, as text."""
    trials = config.trials()
    sampled = config.search.sampler != "grid"
    seeds = f"seed{'s' if len(config.request.seeds) > 1 else ''} {', '.join(map(str, config.request.seeds))}"
    count = f"{len(trials)} trial{'s' if len(trials) > 1 else ''} and direct fine-tuning"
    rows = [("study", f"{config.name} ({config.search.sampler}, {count}, {seeds})")]
    rows += [("learn", config.learn.label), ("keep", config.keep.label)]
    if config.validation:
        rows.append(("chosen", f"by {config.validation.label}, not by what is learnt"))
    rows.append(("output", str(config.output_dir)))
    if config.search.extend:
        rows.append(("extend", f"up to {config.search.extend} more values at each end of a method's strengths"))
    if config.request.toy:
        text = f"{config.request.toy}: base and data are made when the study runs, and the trials are checked then"
        rows.append(("toy", text))
    rows += [("note", note) for note in config.notes]
    text_lines = ["Dry run: the request is sound; nothing was trained.", ""]
    text_lines += [f"  {key:<8} {value}" for key, value in rows]
    text_lines += ["", "     0  direct fine-tuning"]
    if sampled:
        what = "combinations are" if len(trials) > 1 else "combination is"
        text_lines.append(f"        {len(trials)} {what} drawn as the study runs")
    else:
        for number, trial in enumerate(trials[:LISTED_TRIALS], 1):
            text_lines.append(f"  {number:>4}  {config.space.label(trial)}")
        if len(trials) > LISTED_TRIALS:
            text_lines.append(f"        ... and {len(trials) - LISTED_TRIALS} more")
    runs = (len(trials) + 1) * len(config.request.seeds)
    return lines(*text_lines, "", f"  {runs} fine-tuning runs in all.")
