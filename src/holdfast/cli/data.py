"""`holdfast data`: from the files of public data sets and corpora to rows to train on, to articles made of them, and to
news from the web."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import print_line, stderr_console, stdout_console, stoppable
from holdfast.cli.endpoint_options import EndpointOptions, key_problems
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import with_floats
from holdfast.config.values import Mistake
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.data.prepare.quality import QualityOptions
from holdfast.data.prepare.registry import FORMATS
from holdfast.data.prepare.run import Preparation, Prepared, Rows
from holdfast.data.prepare.stackexchange import StackExchangeOptions
from holdfast.data.synthesis_prompts import PER_ARTICLE, PROMPTS
from holdfast.data.synthesise import Asking, Plan, Settings, Synthesis, Synthesised
from holdfast.errors import ConfigError, HoldfastError, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.support.endpoint import Endpoint

_MONTHS = 24
"""Months that are listed; with more, years are."""

HELP = """\
usage: holdfast data prepare|synthesise|crawl [options]

  prepare      the files of a public data set or of a corpus, as they are, to rows that 'holdfast train' reads
  synthesise   rows to textbook articles, written by a language model behind any OpenAI-compatible endpoint
  crawl        articles of newspapers, gathered by the library fundus (pip install 'holdfast[crawl]')

examples
  holdfast data prepare metamath --input MetaMathQA-395K.json --output data/math/metamath.jsonl --seed 0
  holdfast data prepare stackexchange --input Posts.xml --tags algebra calculus --min_score 3 --output data/math/stack.jsonl
  holdfast data synthesise --input data/math/metamath.jsonl data/math/stack.jsonl --model gpt-4o-mini \\
      --base_url https://api.openai.com/v1 --budget_usd 50 --output data/math/articles.jsonl --dry_run
  holdfast train --config run.yaml --dataset_name data/math/articles.jsonl

  holdfast data crawl --publishers us.TheNewYorker uk --after 2024-01-01 --limit 10000 --output news/articles.jsonl
  holdfast data prepare corpus --input news/ --after 2024-01-01 --near_duplicates 0.8 --output new.jsonl --heldout 0.01

'holdfast data prepare --help', 'holdfast data synthesise --help' and 'holdfast data crawl --help' explain the options.
"""

PREPARE = """\
Reads files of a public data set or of a corpus as they are and writes one JSON object a line. Equal rows are written once;
what was skipped is counted with the reason, malformed records are named with their lines. The same question never is on
both sides of --heldout. The output is whole or absent, and OUTPUT.json beside it says how it came about.

formats
"""
PREPARE_EPILOG = """\
examples
  holdfast data prepare metamath --input MetaMathQA-395K.json --output metamath.jsonl --seed 0 --limit 50000
  holdfast data prepare stackexchange --input math.stackexchange.com.7z --site math.stackexchange.com --min_score 5 \\
      --output stack.jsonl                                                          # .7z needs: pip install py7zr
  holdfast data prepare starcoder_instructions --input train.parquet --output code.jsonl --heldout 0.01
  holdfast data prepare ultrachat --input train_sft-*.parquet --output chat.jsonl --heldout 0.01 --seed 0
  holdfast data prepare corpus --input news/ more.parquet CC-NEWS.warc.wet.gz --after 2023-12-01 --before 2024-10-01 \\
      --near_duplicates 0.8 --output new.jsonl --heldout 0.01                       # folders and files, of any kinds
  holdfast data prepare quality --input QuALITY.v1.0.1.htmlstripped.train --output articles.jsonl
  holdfast data prepare quality --input QuALITY.v1.0.1.htmlstripped.train --questions --output questions.jsonl
  holdfast evaluate MODEL --tasks quality --data quality=questions.jsonl
"""

SYNTHESISE = """\
Asks a language model to write an article about every few rows: a textbook section about questions with their answers, or
an article about a document. Every reply is kept the moment it is there (OUTPUT.ledger.jsonl): the same command goes on
where it was, asks nothing again that was answered, and keeps to its budget over all sessions. Replies that are cut,
refused or too short are counted and left out.
"""
SYNTHESISE_EPILOG = """\
examples
  # how many prompts, how many tokens, what it costs at most; asks nothing
  holdfast data synthesise --input metamath.jsonl stack.jsonl --model gpt-4o-mini --base_url https://api.openai.com/v1 \\
      --output articles.jsonl --dry_run

  # the articles, for 20 dollars at most
  holdfast data synthesise --input metamath.jsonl stack.jsonl --model gpt-4o-mini --base_url https://api.openai.com/v1 \\
      --output articles.jsonl --budget_usd 20 --workers 16

  # about documents, twelve articles each, on a server of one's own
  holdfast data synthesise --input quality.jsonl --prompt article --variations 12 --model Llama-3-70B-Instruct \\
      --base_url http://localhost:8000/v1 --price_input 0 --price_output 0 --output articles.jsonl

the key
  is read from an environment variable, never from the command line, and is never written. For api.openai.com that is
  OPENAI_API_KEY; for any other endpoint name the variable with --api_key_variable, or no key is sent. The rows of the
  input are sent to the endpoint.

a template of your own
  --prompt FILE: a text with {material} where the rows go, and maybe {focus}, in which variations differ.
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast data --help`."""
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0 if argv else 2
    step, *rest = argv
    if step not in STEPS:
        raise ConfigError(
            f"expected 'holdfast data prepare', 'holdfast data synthesise' or 'holdfast data crawl', got "
            f"'{step}'.{did_you_mean(step, STEPS)}"
        )
    return STEPS[step](rest)


# -------------------------------------------------------------------------------------------------------------- prepare


@dataclass(frozen=True, kw_only=True)
class _Files:
    format: Annotated[str, Meta(positional=True, metavar="FORMAT", choices=tuple(FORMATS))]
    """Which data set's files these are."""
    input: Annotated[tuple[Path, ...], Meta(repeatable=True, metavar="FILE")]
    """The files, in the order to read them; of corpus also folders."""
    output: Annotated[Path, Meta(metavar="FILE.jsonl")]
    """The rows; never overwritten by another request."""


@dataclass(frozen=True, kw_only=True)
class PrepareRequest(QualityOptions, StackExchangeOptions, CorpusOptions, Rows, _Files):
    """`holdfast data prepare`: what is common, and the options of all formats."""

    def preparation(self) -> Preparation:
        """The request of the library: of the formats' options those that were given."""
        owners = (CorpusOptions, StackExchangeOptions, QualityOptions)
        given = {s.name: getattr(self, s.name) for owner in owners for s in settings_of(owner)}
        options = {name: value for name, value in given.items() if value is not None and value is not False}
        options |= {name: list(value) for name, value in options.items() if isinstance(value, tuple)}
        common = {s.name: getattr(self, s.name) for s in settings_of(Rows)}
        return Preparation(format=self.format, inputs=self.input, output=self.output, options=options, **common)

    def problems(self) -> list[str]:
        """What is wrong with the request as a whole, and with its files."""
        return self.preparation().problems()


PREPARATION = Command(
    name="holdfast data prepare",
    request=PrepareRequest,
    description=PREPARE + "\n".join(f"  {name:<24}{one.about}\n{'':<26}-> {one.rows}" for name, one in FORMATS.items()),
    epilog=PREPARE_EPILOG,
    usage="FORMAT --input FILE... --output FILE.jsonl [options]",
)


def run_prepare(argv: list[str]) -> int:
    """`holdfast data prepare`."""
    from holdfast.data.prepare.run import prepare
    from holdfast.support.environment import terminated_is_interrupted

    request = with_floats(PREPARATION.read(argv)).preparation()
    with (
        terminated_is_interrupted(),
        stoppable("Stopped. Nothing was left half written; the same command begins anew."),
    ):
        found = prepare(request)
    show_prepared(request, found)
    return 0


def show_prepared(asked: Preparation, found: Prepared) -> None:
    """Prints what was written, and every count."""
    from rich.table import Table

    counts, out = found.record["counts"], stdout_console()
    say = functools.partial(print_line, out)
    if found.done_before:
        say(f"Nothing to do: {asked.output} is there, from the same input and options.")
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(f"{counts['records']:,}", "records read")
    table.add_row(f"{counts['train']:,}", f"rows in {asked.output}")
    if asked.heldout_path is not None:
        table.add_row(f"{counts['heldout']:,}", f"rows in {asked.heldout_path}")
    for reason, count in counts["skipped"].items():
        table.add_row(f"{count:,}", f"skipped: {reason}")
    for reason, count in counts["shortened"].items():
        table.add_row(f"{count:,}", f"left out of its row: {reason}")
    if counts["malformed"]:
        table.add_row(f"{counts['malformed']:,}", "malformed and left out")
    if "documents" in counts:
        _add_documents(table, counts)
    out.print(table, markup=False)
    for place in found.record["malformed_places"]:
        say(f"  malformed: {place}")
    for place in found.record.get("malformed_date_places", []):
        say(f"  no usable date: {place}")


def _add_documents(table: Table, counts: Mapping[str, Any]) -> None:
    """What is counted of a corpus beside its rows: files, characters, dates, and documents a month (a year where there
    are many)."""
    from holdfast.data.prepare.inputs import said

    table.add_row(
        f"{sum(counts['kinds'].values()):,}",
        f"files read ({', '.join(f'{n:,} {kind}' for kind, n in counts['kinds'].items())})",
    )
    if counts["other_files"]:
        table.add_row(
            f"{sum(counts['other_files'].values()):,}", f"other files in the folders ({said(counts['other_files'])})"
        )
    table.add_row(f"{counts['characters']:,}", "characters")
    if counts["malformed_dates"]:
        table.add_row(f"{counts['malformed_dates']:,}", "dates that cannot be used; their documents count as undated")
    if counts["undated"]:
        table.add_row(f"{counts['undated']:,}", "rows without a date")
    if counts["first_date"]:
        table.add_row(
            f"{counts['documents'] - counts['undated']:,}",
            f"rows dated {counts['first_date']} to {counts['last_date']}",
        )
    periods: dict[str, int] = {}
    for month, count in counts["months"].items():
        period = month if len(counts["months"]) <= _MONTHS else month[:4]
        periods[period] = periods.get(period, 0) + count
    for period, count in periods.items():
        table.add_row(f"{count:,}", f"  {period}")


# ----------------------------------------------------------------------------------------------------------- synthesise


_MONEY = "money, in USD"
Price = Annotated[float, Meta(ge=0, metavar="USD", group=_MONEY)]


@dataclass(frozen=True, kw_only=True)
class _Articles:
    input: Annotated[tuple[Path, ...], Meta(repeatable=True, metavar="FILE")]
    """Rows of any layout that 'holdfast train' knows, .jsonl, .json or .parquet, such as 'holdfast data prepare'
    writes."""
    output: Annotated[Path, Meta(metavar="FILE.jsonl")]
    """The articles: text, and the hashes of the rows each was made of."""
    dry_run: bool = False
    """Count prompts, estimate tokens and cost; ask and write nothing."""
    limit: Annotated[int | None, Meta(ge=1, group="what is asked")] = None
    """The first N prompts only."""


@dataclass(frozen=True, kw_only=True)
class SynthesisRequest(EndpointOptions, Asking, _Articles):
    """`holdfast data synthesise`."""

    workers: Annotated[int, Meta(ge=1, group="the endpoint")] = 8
    """Requests at once."""
    timeout: Annotated[float, Meta(gt=0, metavar="SECONDS", group="the endpoint")] = 300.0
    """For one attempt."""
    api_key_variable: Annotated[str | None, Meta(metavar="VARIABLE", group="the endpoint")] = None
    """Environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)."""
    most_failures: Annotated[float, Meta(ge=0, le=1, metavar="SHARE", group="the endpoint")] = 0.05
    """Share of the requests that may fail for good before the command does."""
    budget_usd: Annotated[float | None, Meta(gt=0, metavar="USD", group=_MONEY)] = None
    """For all sessions that write this output, what is on its way counted at its most (no bound)."""
    price_input: Price = 0.15
    """A million tokens sent."""
    price_output: Price = 0.60
    """A million tokens received."""

    def synthesis(self, template: tuple[str, str]) -> Synthesis:
        """The request of the library, with the name and the text of its template."""
        asking = {s.name: getattr(self, s.name) for s in settings_of(Asking)}
        name, text = template
        return Synthesis(
            inputs=self.input,
            output=self.output,
            settings=Settings(**{**asking, "prompt": name}, template=text),
            limit=self.limit,
            budget=self.budget_usd,
            prices=(self.price_input, self.price_output),
        )

    def problems(self) -> list[str | Mistake]:
        """What is wrong with the request as a whole, with its files, its endpoint and the key."""
        found: list[str | Mistake] = [*self.endpoint(self.api_key_variable).problems()]
        found += [Mistake(path=("api_key_variable",), text=problem) for problem in key_problems(self.api_key_variable)]
        try:
            template = read_template(self.prompt)
        except ConfigError as error:
            found += error.problems
            template = (self.prompt, "{material}")
        return found + self.synthesis(template).problems()


SYNTHESIS = Command(
    name="holdfast data synthesise",
    request=SynthesisRequest,
    description=SYNTHESISE,
    epilog=SYNTHESISE_EPILOG,
    usage="--input FILE... --model NAME --base_url URL --output FILE.jsonl [options]",
)


def read_template(prompt: str) -> tuple[str, str]:
    """(name, template) of one of holdfast's prompts, or of a file.

    Raises:
        ConfigError: neither, with the nearest name.
    """
    if prompt in PROMPTS:
        return prompt, PROMPTS[prompt]
    path = Path(prompt).expanduser()
    try:
        return path.name, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        beside = [*PROMPTS, *(p.name for p in path.parent.glob("*") if path.parent.is_dir())]
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"prompt: expected textbook, article or a file with a template, got '{prompt}' "
            f"({reason}).{did_you_mean(path.name, beside)}"
        ) from None


def run_synthesise(argv: list[str]) -> int:
    """`holdfast data synthesise`."""
    from holdfast.support.environment import terminated_is_interrupted

    given = SYNTHESIS.given(argv)
    if (rows := PER_ARTICLE.get(str(given.values.get("prompt")))) is not None:
        given.values.setdefault("per_article", rows)
    request = with_floats(SYNTHESIS.decode(given))
    asked, endpoint = request.synthesis(read_template(request.prompt)), request.endpoint(request.api_key_variable)

    from holdfast.data.synthesise import plan, synthesise

    if request.dry_run:
        show_plan(asked, plan(asked), endpoint)
        return 0
    text = f"Stopped. What was answered is kept in {asked.ledger}; the same command goes on from there."
    with terminated_is_interrupted(), stoppable(text), _bar(asked.budget) as report:
        found = synthesise(asked, endpoint, progress=report)
    show_synthesised(asked, found)
    counts = found.record["counts"]
    if counts["failed"] > request.most_failures * counts["prompts"]:
        raise HoldfastError(
            f"{counts['failed']} of {counts['prompts']} requests failed for good (see {asked.ledger}), more than "
            f"{request.most_failures:.0%} (--most_failures). The same command asks for them again."
        )
    return 0


def show_plan(asked: Synthesis, found: Plan, endpoint: Endpoint) -> None:
    """`--dry_run`: what would be asked, and what it would cost."""
    say = functools.partial(print_line, stdout_console())
    left, (price_input, price_output) = found.prompts - found.there, asked.prices
    say("Dry run: the request is sound; nothing was sent or written.")
    say(
        f"rows: {found.rows:,}, {asked.settings.per_article} in a prompt, {asked.settings.variations} "
        f"variation{'s'[: asked.settings.variations > 1]}"
    )
    say(f"prompts: {found.prompts:,}, of which {found.there:,} have a reply already; {left:,} to {endpoint.shown}")
    say(f"tokens: about {found.prompt_tokens:,} sent (4 characters a token), at most {found.most_tokens:,} received")
    if found.mean_tokens is not None:
        say(f"replies so far: {found.mean_tokens:,.0f} tokens on average")
    cost = (
        f"cost: at most {found.most:,.2f} USD at {price_input:g} and {price_output:g} USD a million tokens sent "
        f"and received"
    )
    if found.likely is not None:
        cost += f", about {found.likely:,.2f} with replies as long as so far"
    say(cost + (f"; {found.spent:,.2f} USD were spent before" if found.spent else ""))
    if asked.budget is not None:
        remaining = max(0.0, asked.budget - found.spent)
        say(
            f"budget: {asked.budget:,.2f} USD, {remaining:,.2f} left"
            + ("" if found.most <= remaining else "; it may end before the prompts do")
        )


def show_synthesised(asked: Synthesis, found: Synthesised) -> None:
    """Prints what came of a session."""
    record, counts = found.record, found.record["counts"]
    say = functools.partial(print_line, stdout_console())
    say(
        f"{counts['articles']:,} articles in {asked.output}, from {counts['prompts']:,} prompts ({found.asked:,} "
        f"asked now)"
    )
    left_out = {name: counts[name] for name in ("cut", "refused", "short", "repeated", "failed", "unasked")}
    say("left out: " + ", ".join(f"{count:,} {name}" for name, count in left_out.items()))
    say(
        f"tokens: {record['prompt_tokens']:,} sent and {record['completion_tokens']:,} received, as the endpoint "
        f"counts them"
    )
    say(
        f"cost: {record['cost_usd']:,.4f} USD over all sessions"
        + (f", of {asked.budget:,.2f}" if asked.budget is not None else "")
    )
    for note in found.notes:
        say(f"note: {note}")


# ---------------------------------------------------------------------------------------------------------------- both


def run_crawl(argv: list[str]) -> int:
    """`holdfast data crawl`."""
    from holdfast.cli import data_crawl

    return data_crawl.run(argv)


STEPS: dict[str, Callable[[list[str]], int]] = {
    "prepare": run_prepare,
    "synthesise": run_synthesise,
    "crawl": run_crawl,
}


@contextlib.contextmanager
def _bar(budget: float | None) -> Iterator[Callable[[int, int, float], None]]:
    """A bar with the remaining time and the money so far on stderr, where somebody is watching."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = stderr_console()
    money = TextColumn("{task.fields[money]}")
    columns: Sequence[Any] = (
        TextColumn("Writing articles"),
        BarColumn(),
        MofNCompleteColumn(),
        money,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    of = f" of {budget:,.2f}" if budget is not None else ""
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    row = bar.add_task("", total=None, money="")

    def report(done: int, total: int, spent: float) -> None:
        bar.start()  # not before there is something to report: reading the input has a bar of its own
        bar.update(row, completed=done, total=total, money=f"{spent:,.4f}{of} USD")

    try:
        yield report
    finally:
        bar.stop()
