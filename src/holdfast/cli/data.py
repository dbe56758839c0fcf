"""`holdfast data`: from the files of public data sets and corpora to rows to train on, to articles made of them, and to
news from the web."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import stderr_console, stdout_console
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import ConfigError, HoldfastError, Interrupted, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.data.prepare.run import Preparation, Prepared
    from holdfast.data.synthesise import Plan, Settings, Synthesis, Synthesised
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


def run_prepare(argv: list[str]) -> int:
    """`holdfast data prepare`."""
    from holdfast.support.environment import terminated_is_interrupted

    request = Request(prepare_parser(), argv)
    asked = read_preparation(request)
    request.check()

    from holdfast.data.prepare.run import prepare

    with (
        terminated_is_interrupted(),
        _stoppable("Stopped. Nothing was left half written; the same command begins anew."),
    ):
        found = prepare(asked)
    show_prepared(asked, found)
    return 0


def prepare_parser() -> RequestParser:
    """The options of `prepare`."""
    from holdfast.data.prepare.registry import FORMATS

    formats = "\n".join(f"  {name:<24}{one.about}\n{'':<26}-> {one.rows}" for name, one in FORMATS.items())
    usage = "FORMAT --input FILE... --output FILE.jsonl [options]"
    parser = RequestParser(
        prog="holdfast data prepare", description=PREPARE + formats, epilog=PREPARE_EPILOG, usage=usage
    )
    parser.words("format", "FORMAT", "which data set's files these are")
    parser.many("input", "FILE", "the files, in the order to read them; of corpus also folders")
    parser.one("output", "FILE.jsonl", "the rows; never overwritten by another request")
    group = parser.add_argument_group("which rows")
    parser.one("limit", "N", "so many rows at most: the first, or with --seed a random sample of all", group=group)
    parser.one(
        "seed",
        "N",
        "shuffle; the same rows come out in the same order whatever the input's (order of the files)",
        group=group,
    )
    parser.one(
        "heldout", "SHARE", "of the questions or documents, such as 0.01, that go to a file of their own", group=group
    )
    parser.one(
        "heldout_output", "FILE.jsonl", "where these go (OUTPUT's name with .heldout before .jsonl)", group=group
    )
    parser.one(
        "most_malformed",
        "SHARE",
        "of the records that may be malformed, and are left out then (0: any is an error)",
        group=group,
    )
    group = parser.add_argument_group("corpus")
    parser.one("after", "DATE", "only documents of this day or later, as 2023-12-01", group=group)
    parser.one("before", "DATE", "only documents before this day, which is not in the range itself", group=group)
    parser.one(
        "undated",
        "auto|keep|drop",
        "documents without a usable date (auto: dropped where --after or --before is given)",
        group=group,
    )
    parser.one("minimum_characters", "N", "shorter texts are left out (0: empty ones only)", group=group)
    parser.one(
        "near_duplicates",
        "SHARE",
        "similarity, such as 0.8, from which documents are one; the first published stays (off)",
        group=group,
    )
    parser.switch("titles", "put the title in front of the text", group=group)
    parser.one("kind", "auto|text|rows|wet|fundus", "what the files are (auto: by ending and content)", group=group)
    parser.one(
        "text_column", "NAME", "where the text is (the first of text, plaintext, content, body, document)", group=group
    )
    parser.one(
        "date_column", "NAME", "where the date is (the first of date, publishing_date, published, ...)", group=group
    )
    group = parser.add_argument_group("stackexchange")
    parser.one("min_score", "N", "least score of a question, and of an answer", group=group)
    parser.many("tags", "TAG", "only questions with one of these", group=group)
    parser.one(
        "site",
        "HOST",
        "such as math.stackexchange.com: puts a link to the question into each row, as CC BY-SA asks",
        group=group,
    )
    group = parser.add_argument_group("quality")
    parser.switch(
        "questions", "the multiple-choice questions, for 'holdfast evaluate', in place of the articles", group=group
    )
    return parser


def read_preparation(request: Request) -> Preparation:
    """What is asked for; mistakes are added to the request's problems."""
    from holdfast.data.prepare.registry import FORMATS
    from holdfast.data.prepare.run import Preparation

    names = request.texts("format")
    if not names or (len(names) > 1 and not request.unknown):  # words after an unknown option may be its values
        said = f"{len(names)}: {', '.join(names)}" if names else "none"
        request.problems.append(
            f"expected one format ({', '.join(FORMATS)}), got {said}, as in 'holdfast data prepare metamath --input "
            f"...'"
        )
    if not request.has("input"):
        request.problems.append("--input is missing: the files to read")
    output = request.required("output", "the .jsonl file to write")
    options: dict[str, Any] = {}
    if (score := request.number("min_score", None)) is not None:
        options["min_score"] = score
    if tags := request.texts("tags"):
        options["tags"] = tags
    if (site := request.text("site", None)) is not None:
        options["site"] = str(site)
    for name in ("questions", "titles"):
        if request.on(name):
            options[name] = True
    for name in ("after", "before", "undated", "kind", "text_column", "date_column"):
        if (value := request.text(name, None)) is not None:
            options[name] = value
    if (least := request.whole("minimum_characters", None, least=0)) is not None:
        options["minimum_characters"] = least
    if (alike := request.number("near_duplicates", None)) is not None:
        options["near_duplicates"] = alike
    asked = Preparation(
        format=names[0] if names else "",
        inputs=tuple(Path(name).expanduser() for name in request.texts("input")),
        output=Path(output or "train.jsonl").expanduser(),
        options=options,
        limit=request.whole("limit", None, least=1),
        seed=request.whole("seed", None),
        heldout=request.number("heldout", 0.0),
        heldout_output=_path(request, "heldout_output"),
        most_malformed=request.number("most_malformed", 0.0),
    )
    said_already = (
        *(() if names else ("expected one of the formats",)),
        *(() if request.has("input") else ("input:",)),
    )
    _add(request, [problem for problem in asked.problems() if not problem.startswith(said_already)])
    return asked


def show_prepared(asked: Preparation, found: Prepared) -> None:
    """Prints what was written, and every count."""
    from rich.table import Table

    counts, out = found.record["counts"], stdout_console()

    def say(line: str) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False)

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


def run_synthesise(argv: list[str]) -> int:
    """`holdfast data synthesise`."""
    from holdfast.support.environment import terminated_is_interrupted

    request = Request(synthesise_parser(), argv)
    asked, endpoint = read_synthesis(request)
    most_failures = request.number("most_failures", 0.05)
    if not 0 <= most_failures <= 1:
        request.problems.append(f"--most_failures: expected a share from 0 to 1, got {most_failures}")
    request.check()

    from holdfast.data.synthesise import plan, synthesise

    if request.on("dry_run"):
        show_plan(asked, plan(asked), endpoint)
        return 0
    kept = f"Stopped. What was answered is kept in {asked.ledger}; the same command goes on from there."
    with terminated_is_interrupted(), _stoppable(kept), _bar(asked.budget) as report:
        found = synthesise(asked, endpoint, progress=report)
    show_synthesised(asked, found)
    counts = found.record["counts"]
    if counts["failed"] > most_failures * counts["prompts"]:
        raise HoldfastError(
            f"{counts['failed']} of {counts['prompts']} requests failed for good (see {asked.ledger}), more than "
            f"{most_failures:.0%} "
            "(--most_failures). The same command asks for them again."
        )
    return 0


def synthesise_parser() -> RequestParser:
    """The options of `synthesise`."""
    usage = "--input FILE... --model NAME --base_url URL --output FILE.jsonl [options]"
    parser = RequestParser(
        prog="holdfast data synthesise", description=SYNTHESISE, epilog=SYNTHESISE_EPILOG, usage=usage
    )
    parser.many("input", "FILE", "rows of any layout that 'holdfast train' knows, .jsonl, .json or .parquet")
    parser.one("output", "FILE.jsonl", "the articles: text, and the hashes of the rows each was made of")
    parser.switch("dry_run", "count prompts, estimate tokens and cost; ask and write nothing")
    group = parser.add_argument_group("what is asked")
    parser.one(
        "prompt",
        "textbook|article|FILE",
        "for questions with answers, for documents, or a template of your own (textbook)",
        group=group,
    )
    parser.one("per_article", "N", "rows in a prompt (3; 1 for article)", group=group)
    parser.one("variations", "N", "articles about the same rows, each with another focus (1)", group=group)
    parser.one("max_tokens", "N", "of a reply; what is cut there is not kept (3000)", group=group)
    parser.one("temperature", "X", "of sampling (0.7)", group=group)
    parser.one("least_characters", "N", "shorter replies are not kept (300)", group=group)
    parser.one("limit", "N", "the first N prompts only", group=group)
    group = parser.add_argument_group("the endpoint")
    parser.one("model", "NAME", "as the endpoint knows it", group=group)
    parser.one("base_url", "URL", "such as http://localhost:8000/v1 or https://api.openai.com/v1", group=group)
    parser.one(
        "api_key_variable",
        "VARIABLE",
        "environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)",
        group=group,
    )
    parser.one("workers", "N", "requests at once (8)", group=group)
    parser.one("timeout", "SECONDS", "for one attempt (300)", group=group)
    parser.one("attempts", "N", "for one request, with growing pauses between (6)", group=group)
    parser.one(
        "longest_wait", "SECONDS", "of these pauses, and of what the server asks for by Retry-After (120)", group=group
    )
    parser.one(
        "most_failures", "SHARE", "of the requests that may fail for good before the command does (0.05)", group=group
    )
    group = parser.add_argument_group("money, in USD")
    parser.one(
        "budget_usd",
        "USD",
        "for all sessions that write this output, what is on its way counted at its most (no bound)",
        group=group,
    )
    parser.one("price_input", "USD", "a million tokens sent (0.15)", group=group)
    parser.one("price_output", "USD", "a million tokens received (0.60)", group=group)
    return parser


def read_synthesis(request: Request) -> tuple[Synthesis, Endpoint]:
    """What is asked for, and where; mistakes are added to the request's problems."""
    from holdfast.cli.endpoint_options import key_of
    from holdfast.data.synthesise import Synthesis
    from holdfast.support.endpoint import Endpoint

    if not request.has("input"):
        request.problems.append("--input is missing: files of rows, such as 'holdfast data prepare' writes")
    output = request.required("output", "the .jsonl file to write")
    base_url = request.required(
        "base_url", "the endpoint, such as http://localhost:8000/v1 or https://api.openai.com/v1"
    )
    variable, key = key_of(request, base_url, "api_key_variable")
    longest = request.number("longest_wait", 120.0)
    if longest < 0:
        request.problems.append(f"--longest_wait: expected 0 seconds or more, got {longest}")
    endpoint = Endpoint(
        base_url=base_url,
        api_key=key,
        key_variable=variable,
        workers=request.whole("workers", 8),
        timeout=request.number("timeout", 300.0),
        attempts=request.whole("attempts", 6),
        longest_wait=longest,
    )
    asked = Synthesis(
        inputs=tuple(Path(name).expanduser() for name in request.texts("input")),
        output=Path(output or "articles.jsonl").expanduser(),
        settings=_settings(request),
        limit=request.whole("limit", None, least=1),
        budget=request.number("budget_usd", None),
        prices=(request.number("price_input", 0.15), request.number("price_output", 0.60)),
    )
    problems = [p for p in asked.problems() if request.has("input") or not p.startswith("input:")]
    problems = [p for p in problems if request.has("model") or not p.startswith("model:")]
    _add(request, problems + (endpoint.problems() if base_url else []))
    return asked, endpoint


def _settings(request: Request) -> Settings:
    from holdfast.data.synthesis_prompts import PER_ARTICLE, PROMPTS
    from holdfast.data.synthesise import Settings

    prompt = request.text("prompt", "textbook")
    template = PROMPTS.get(prompt)
    if template is None:
        path = Path(prompt).expanduser()
        try:
            template = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            beside = [*PROMPTS, *(p.name for p in path.parent.glob("*") if path.parent.is_dir())]
            reason = getattr(error, "strerror", None) or error
            request.problems.append(
                f"--prompt: expected textbook, article or a file with a template, got '{prompt}' "
                f"({reason}).{did_you_mean(path.name, beside)}"
            )
            template = "{material}"
        prompt = path.name
    return Settings(
        model=request.required("model", "the model's name, as the endpoint knows it"),
        prompt=prompt,
        template=template,
        per_article=request.whole("per_article", PER_ARTICLE.get(prompt, 3)),
        variations=request.whole("variations", 1),
        max_tokens=request.whole("max_tokens", 3000),
        temperature=request.number("temperature", 0.7),
        least_characters=request.whole("least_characters", 300),
    )


def show_plan(asked: Synthesis, found: Plan, endpoint: Endpoint) -> None:
    """`--dry_run`: what would be asked, and what it would cost."""
    out = stdout_console()

    def say(line: str) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False)

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
    said = (
        f"cost: at most {found.most:,.2f} USD at {price_input:g} and {price_output:g} USD a million tokens sent "
        f"and received"
    )
    if found.likely is not None:
        said += f", about {found.likely:,.2f} with replies as long as so far"
    say(said + (f"; {found.spent:,.2f} USD were spent before" if found.spent else ""))
    if asked.budget is not None:
        remaining = max(0.0, asked.budget - found.spent)
        say(
            f"budget: {asked.budget:,.2f} USD, {remaining:,.2f} left"
            + ("" if found.most <= remaining else "; it may end before the prompts do")
        )


def show_synthesised(asked: Synthesis, found: Synthesised) -> None:
    """Prints what came of a session."""
    record, out = found.record, stdout_console()
    counts = record["counts"]

    def say(line: str) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False)

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


def _path(request: Request, name: str) -> Path | None:
    value = request.text(name, None)
    return Path(value).expanduser() if value is not None else None


def _add(request: Request, problems: Sequence[str]) -> None:
    """Adds problems, those of an option with its dashes."""
    for problem in problems:
        name = problem.partition(":")[0]
        option = name in request.parser.values and name != "format"
        request.problems.append(f"{request.named(name)}{problem.removeprefix(name)}" if option else problem)


@contextlib.contextmanager
def _stoppable(said: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(said) from None


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
