"""`holdfast train --dry_run`: what would be done, once everything that the run reads was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.named import check_on_hub
from holdfast.cli.console import print_line, stdout_console, write
from holdfast.errors import Note
from holdfast.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.runs.config import Machine, TrainConfig
    from holdfast.runs.preview import PreparedRow, Preview

EXAMPLES = 3
LONGEST = 800
"""Characters of a stretch that are shown: its beginning and its end."""


def dry_run(
    config: TrainConfig,
    command: list[str] | None,
    *,
    machine: Machine,
    flops_per_second: float | None = None,
) -> None:
    """Prints the plan, once the output folder (free, empty, or with this very run) and all files
    are seen to be sound."""
    from holdfast.records.run import RunFolder
    from holdfast.runs.dry_run import look
    from holdfast.runs.plan_text import plan_text
    from holdfast.runs.run_folder import run_to_continue
    from holdfast.support.environment import quiet_datasets, quiet_libraries

    folder = config.training.output_dir
    record = run_to_continue(RunFolder(folder), config)
    with quiet_libraries(), quiet_datasets():
        if machine.here:
            check_on_hub(str(config.model.model_name_or_path))
        view = look(config)
    config.notes.extend(Note("rows", text) for text in view.notes)
    write(
        plan_text(config, view, command=command, machine=machine, flops_per_second=flops_per_second)
    )
    if record is not None:
        write(
            f"  {'continues':<11} the run in {folder} (status {record.status}, stage "
            f"'{record.stage}')"
        )
    if view.preview is not None:
        print_examples(view.preview, view.tokenizer, stdout_console())


def print_examples(preview: Preview, tokenizer: Any, console: Console) -> None:
    """A few rows as they are trained on: what counts in colour, or between » and « where there is
    none."""
    from rich.text import Text

    plain = console.color_system is None
    print_line(console)
    print_line(
        console,
        f"What is trained is {'between » and «' if plain else 'green'}, the rest is only read.",
    )
    for number, row in enumerate(_spread(preview.rows), 1):
        print_line(console)
        print_line(
            console, f"  example {number}: {len(row.ids):,} tokens, {sum(row.trained):,} trained"
        )
        text = Text()
        for piece, trained in row.pieces(tokenizer):
            if len(piece) > LONGEST:
                piece = f"{piece[: LONGEST // 2]} [...] {piece[-LONGEST // 2 :]}"
            if plain and trained:
                piece = f"»{piece}«"
            text.append(printable(piece, breaks=True), style="green" if trained else "dim")
        console.print(text, soft_wrap=True)


def _spread(rows: tuple[PreparedRow, ...]) -> list[PreparedRow]:
    """As many as are shown, evenly over all."""
    count = min(EXAMPLES, len(rows))
    return [rows[number * (len(rows) - 1) // max(1, count - 1)] for number in range(count)]
