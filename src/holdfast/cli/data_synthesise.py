"""`holdfast data synthesise`: rows to articles, written by a language model behind an endpoint."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import print_line, stderr_console, stdout_console, stoppable
from holdfast.cli.endpoint_options import EndpointSettings
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import with_floats
from holdfast.config.values import Mistake
from holdfast.data.synthesis_prompts import PER_ARTICLE, PROMPTS
from holdfast.data.synthesise import Asking, Plan, Settings, Synthesis, Synthesised
from holdfast.errors import ConfigError, HoldfastError, did_you_mean
from holdfast.support.endpoint import find_key

if TYPE_CHECKING:
    from holdfast.support.endpoint import Endpoint

DESCRIPTION = """\
Asks a language model to write an article about every few rows: a textbook section about questions with their answers, or
an article about a document. Every reply is kept the moment it is there (OUTPUT.ledger.jsonl): the same command goes on
where it was, asks nothing again that was answered, and keeps to its budget over all sessions. Replies that are cut,
refused or too short are counted and left out.
"""
EPILOG = """\
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
class SynthesisRequest(EndpointSettings, Asking, _Articles):
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
        if problem := find_key(self.base_url, self.api_key_variable)[2]:
            found.append(Mistake(path=("api_key_variable",), text=problem))
        try:
            template = read_template(self.prompt)
        except ConfigError as error:
            found += error.problems
            template = (self.prompt, "{material}")
        return found + self.synthesis(template).problems()


COMMAND = Command(
    name="holdfast data synthesise",
    request=SynthesisRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
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


def run(argv: list[str]) -> int:
    """`holdfast data synthesise`."""
    from holdfast.support.environment import terminated_is_interrupted

    given = COMMAND.given(argv)
    if (rows := PER_ARTICLE.get(str(given.values.get("prompt")))) is not None:
        given.values.setdefault("per_article", rows)
    request = with_floats(COMMAND.decode(given))
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
