"""`holdfast data select`: passages of a corpus ranked by a model's perplexity."""

from __future__ import annotations

import functools
import math

from holdfast.cli.console import print_counts, print_line, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.decode import with_floats
from holdfast.data.select.request import LEDGER
from holdfast.data.select.run import Selected
from holdfast.runs.selecting import Selection

DESCRIPTION = """\
Cuts the documents of a corpus into passages, leaves out equal ones, ranks them by a model's perplexity, and writes
those of lowest perplexity up to a token budget: text that the model knows, to restore its pattern with after
fine-tuning. Beside them a random sample that shares nothing with them, to probe with. The corpus never has to fit into
memory; after Ctrl-C or a kill the same command goes on, and scores nothing twice.
"""
EPILOG = """\
examples
  holdfast data select --model base --input corpus/ --tokens 20000000 \\
      --output passages
  holdfast data select --model base --input notes/ more.parquet \\
      --tokens 2000000 --probing 1000 --output passages
  holdfast data select --model base --input corpus.jsonl --tokens 2000000 \\
      --questions mmlu.jsonl --overlap drop --output passages
  holdfast train --model_name_or_path tuned \\
      --dataset_name passages/restoring.jsonl --output_dir restored
  holdfast evaluate base tuned restored --perplexity passages/probing.jsonl

OUTPUT
  restoring.jsonl   text, nats_per_token, tokens, source; perplexity low to high
  probing.jsonl     the same columns; a random sample
  selection.json    the request, hashes, counts, quantiles
  README.md         the data card
"""

COMMAND = Command(
    name="holdfast data select",
    request=Selection,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--model MODEL --input FILE... --tokens N --output FOLDER [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast data select --help`."""
    from holdfast.support.environment import quiet_libraries, terminated_is_interrupted

    request = with_floats(COMMAND.read(argv))

    from holdfast.runs.selecting import select

    text = f"Stopped. What was scored is kept in {request.scores or request.output / LEDGER}; the same command goes on."
    with terminated_is_interrupted(), stoppable(text), quiet_libraries():
        found = select(request)
    show_selected(found)
    return 0


def show_selected(found: Selected) -> None:
    """Prints what was selected, and every count."""
    record, out = found.record, stdout_console()
    counts, say = record["counts"], functools.partial(print_line, out)
    if found.done_before:
        say(f"Nothing to do: {found.folder} has it, from the same input, options and model.")
    rows = [(counts["records"], "documents read")]
    rows += [(count, f"left out: {reason}") for reason, count in counts["skipped"].items()]
    rows += [(count, f"documents with {name}, which is not read") for name, count in counts.get("not_read", {}).items()]
    rows += [(counts["malformed"], "malformed and left out")] if counts["malformed"] else []
    rows += [(counts["all"]["passages"], f"passages ranked, {_in_words(counts['all'])}")]
    for path, name in ((found.restoring, "restoring"), (found.probing, "probing")):
        if path is not None:
            rows.append((counts[name]["passages"], f"passages in {path}, {_in_words(counts[name])}"))
    print_counts(out, rows)
    if (asked := record.get("questions")) is not None:
        kept = record["options"]["overlap"] == "keep"
        taken = counts["restoring"]["overlapping"] + counts["probing"]["overlapping"]
        say(
            f"{counts['overlapping']:,} passages share 13 words in a row with one of {asked['count']:,} questions"
            + (
                f"; {taken:,} of them are in the sets. --overlap drop leaves them out."
                if kept and counts["overlapping"]
                else "."
            )
            + (f" {asked['short']:,} questions are too short to be looked for." if asked["short"] else "")
        )
    for place in record["malformed_places"]:
        say(f"  malformed: {place}")


def _in_words(one: dict[str, object]) -> str:
    nats = float(one["nats_per_token"])  # type: ignore[arg-type]
    return f"{one['tokens']:,} tokens, perplexity {math.exp(min(nats, 700)):,.1f}"
