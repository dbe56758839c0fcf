"""`holdfast data synthesise`: rows to articles, written by a language model behind an endpoint."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import print_line, stderr_console, stdout_console, stoppable
from holdfast.cli.endpoint_options import EndpointSettings
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.decode import with_floats
from holdfast.config.values import Mistake
from holdfast.data.synthesis_prompts import PER_ARTICLE
from holdfast.data.synthesise import Plan, Synthesis, Synthesised, plan, synthesise
from holdfast.errors import HoldfastError
from holdfast.support.endpoint import find_key
from holdfast.support.progress import counted

if TYPE_CHECKING:
    from holdfast.support.endpoint import Endpoint

DESCRIPTION = """\
Asks a language model to write an article about every few rows: a textbook section about questions with their answers,
or an article about a document. Every reply is saved as soon as it arrives (OUTPUT.ledger.jsonl): the same command
continues where it was, asks nothing again that was answered, and keeps to its budget over all sessions. Replies that
are cut off, refused or too short are counted and left out.
"""
EPILOG = """\
examples
  # how many prompts, how many tokens, what it costs at most; asks nothing
  holdfast data synthesise --input metamath.jsonl stack.jsonl --model gpt-4o-mini \\
      --base_url https://api.openai.com/v1 --output articles.jsonl --dry_run

  # the articles, for 20 dollars at most
  holdfast data synthesise --input metamath.jsonl stack.jsonl --model gpt-4o-mini \\
      --base_url https://api.openai.com/v1 --output articles.jsonl --budget_usd 20 --workers 16

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


_ENDPOINT = EndpointSettings.settings_group


@dataclass(frozen=True, kw_only=True)
class SynthesisRequest(EndpointSettings, Synthesis):
    """`holdfast data synthesise`."""

    dry_run: bool = False
    """Count prompts, estimate tokens and cost; ask and write nothing."""
    workers: Annotated[int, Meta(ge=1, group=_ENDPOINT)] = 8
    """Requests at once."""
    timeout: Annotated[float, Meta(gt=0, metavar="SECONDS", group=_ENDPOINT)] = 300.0
    """For one attempt."""
    api_key_variable: Annotated[str | None, Meta(metavar="VARIABLE", group=_ENDPOINT)] = None
    """Environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)."""
    most_failures: Annotated[float, Meta(ge=0, le=1, metavar="SHARE", group=_ENDPOINT)] = 0.05
    """Share of the requests that may fail for good before the command does."""

    def problems(self) -> list[Any]:
        """What is wrong with the request as a whole, with its files, its endpoint and the key."""
        found: list[Any] = self.endpoint(self.api_key_variable).problems()
        if problem := find_key(self.base_url, self.api_key_variable)[2]:
            found.append(Mistake(path=("api_key_variable",), text=problem))
        return found + super().problems()


COMMAND = Command(
    name="holdfast data synthesise",
    request=SynthesisRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--input FILE... --model NAME --base_url URL --output FILE.jsonl [options]",
)


def run(argv: list[str]) -> int:
    """`holdfast data synthesise`."""
    from holdfast.support.environment import terminated_is_interrupted

    given = COMMAND.given(argv)
    if (rows := PER_ARTICLE.get(str(given.values.get("prompt")))) is not None:
        given.values.setdefault("per_article", rows)
    request = with_floats(COMMAND.decode(given))
    endpoint = request.endpoint(request.api_key_variable)
    if request.dry_run:
        show_plan(request, plan(request), endpoint)
        return 0
    text = f"Stopped. What was answered is kept in {request.ledger}; the same command goes on from there."
    of = f" of {request.budget_usd:,.2f}" if request.budget_usd is not None else ""
    with (
        terminated_is_interrupted(),
        stoppable(text),
        counted("Writing articles", console=stderr_console()) as report,
    ):
        found = synthesise(
            request, endpoint, progress=lambda done, total, spent: report(done, total, f"{spent:,.4f}{of} USD")
        )
    show_synthesised(request, found)
    counts = found.record["counts"]
    if counts["failed"] > request.most_failures * counts["prompts"]:
        raise HoldfastError(
            f"{counts['failed']} of {counts['prompts']} requests failed for good (see {request.ledger}), more than "
            f"{request.most_failures:.0%} (--most_failures). The same command asks for them again."
        )
    return 0


def show_plan(asked: Synthesis, found: Plan, endpoint: Endpoint) -> None:
    """`--dry_run`: what would be asked, and what it would cost."""
    say = functools.partial(print_line, stdout_console())
    left = found.prompts - found.there
    say("Dry run: the request is sound; nothing was sent or written.")
    say(
        f"rows: {found.rows:,}, {asked.per_article} in a prompt, {asked.variations} "
        f"variation{'s'[: asked.variations > 1]}"
    )
    say(f"prompts: {found.prompts:,}, of which {found.there:,} have a reply already; {left:,} to {endpoint.shown}")
    say(f"tokens: about {found.prompt_tokens:,} sent (4 characters a token), at most {found.most_tokens:,} received")
    if found.mean_tokens is not None:
        say(f"replies so far: {found.mean_tokens:,.0f} tokens on average")
    cost = (
        f"cost: at most {found.most:,.2f} USD at {asked.price_input:g} and {asked.price_output:g} USD a million tokens "
        "sent and received"
    )
    if found.likely is not None:
        cost += f", about {found.likely:,.2f} with replies as long as so far"
    say(cost + (f"; {found.spent:,.2f} USD were spent before" if found.spent else ""))
    for note in found.notes:
        say(f"note: {note}")
    if asked.budget_usd is not None:
        remaining = max(0.0, asked.budget_usd - found.spent)
        say(
            f"budget: {asked.budget_usd:,.2f} USD, {remaining:,.2f} left"
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
        + (f", of {asked.budget_usd:,.2f}" if asked.budget_usd is not None else "")
    )
    for note in found.notes:
        say(f"note: {note}")
