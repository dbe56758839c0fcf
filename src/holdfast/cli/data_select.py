"""`holdfast data select`: passages of a corpus ranked by a model's perplexity."""

from __future__ import annotations

from holdfast.cli.console import print_counts, print_line, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.decode import with_floats
from holdfast.data.select.request import LEDGER
from holdfast.runs.selecting import Selection

DESCRIPTION = """\
Searches a corpus for text that a model knows. Training on this text after fine-tuning restores the model's text
pattern. Cuts the documents into passages, removes duplicates, ranks the passages by the model's perplexity, and writes
the passages of lowest perplexity up to a token budget. Also writes a random sample of other passages for probing. The
corpus need not fit into memory. Interrupted? Run the same command to continue; nothing is scored twice.
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

    text = (
        f"Stopped. Scores so far are kept in {request.scores or request.output / LEDGER}. Run the "
        "same command to continue."
    )
    with terminated_is_interrupted(), stoppable(text), quiet_libraries():
        selected = select(request)
    console = stdout_console()
    if selected.done_before:
        print_line(
            console,
            f"Nothing to do: {selected.folder} has the result of the same input, options and "
            "model.",
        )

    from holdfast.reports.corpus_text import overlap_sentence, selected_rows

    print_counts(console, selected_rows(selected))
    if selected.record.get("questions") is not None:
        print_line(console, overlap_sentence(selected.record))
    for line in selected.record["malformed_places"]:
        print_line(console, f"  malformed: {line}")
    return 0
