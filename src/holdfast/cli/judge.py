"""`holdfast judge`: how often a language model prefers one model's answers to another's, through any OpenAI-compatible
endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import stderr_console, stdout_console
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import DataError, HoldfastError, Interrupted

if TYPE_CHECKING:
    from holdfast.evaluation.judge.answers_store import AnswerSet, GenerationSettings
    from holdfast.evaluation.judge.judge import Judged, JudgeSettings, Pair
    from holdfast.evaluation.judge.win_rate import WinRate
    from holdfast.support.endpoint import Endpoint

DESCRIPTION = """\
Which model gives the better answers? Shows a judge, a language model behind any OpenAI-compatible endpoint, the answers
of both to the same prompts, each pair in both orders, and prints the win rate of the first against the reference:

  win rate             mean probability that the judge prefers the answer; the reference itself has 50 % by definition
  at equal lengths     the same with the judges' liking for long answers taken out
  position bias        how often the judge prefers what it is shown first; 50 % is none

ANSWERS is a file with prompts and answers: {"instruction", "output"} as AlpacaEval has it, {"prompt", "answer"} and the
like. MODEL is a local model folder, whose answers are generated (greedily) and kept in the output folder.
Every judgement is kept the moment it is there: the same command asks only for what is missing.
"""
EPILOG = """\
examples
  # two files of answers, a judge on a server of one's own
  holdfast judge tuned.jsonl --reference base.jsonl --judge_model Llama-3-70B-Instruct \\
      --base_url http://localhost:8000/v1 --output_dir judged

  # two models, whose answers are generated first; how many requests there would be, and at what price
  holdfast judge tuned --reference base --prompts prompts.jsonl --judge_model gpt-4o --base_url https://api.openai.com/v1 \\
      --output_dir judged --price_in 2.5 --price_out 10 --dry_run

the key
  is read from an environment variable, never from the command line, and is never written. For api.openai.com that is
  OPENAI_API_KEY; for any other endpoint name the variable with --api_key_env, or no key is sent.
"""
RESULT, SAMPLES = "win_rate.json", "win_rate.samples.jsonl"


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast judge --help`."""
    request = Request(build_parser(), argv)
    asked = read_request(request)
    request.check()

    from holdfast.evaluation.judge.judge import judge_pairs

    if request.on("dry_run"):
        return preview(asked)
    with _resumable(asked.folder):
        candidate, reference = (_answers(name, asked) for name in (asked.candidate, asked.reference))
        pairs = _pairs(candidate, reference, asked)
        with _bar("Judging") as report:
            judged = judge_pairs(pairs, asked.settings, asked.endpoint, asked.folder, progress=report)
    return _finish(asked, candidate, reference, judged)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The request, read and checked."""

    candidate: str
    """ANSWERS or MODEL."""
    reference: str
    prompts: list[str] | None
    """None: those of the reference's file."""
    limit: int | None
    """Only the first so many prompts."""
    folder: Path
    settings: JudgeSettings
    endpoint: Endpoint
    generation: GenerationSettings
    prices: tuple[float | None, float | None]
    """A million tokens of prompts and of replies."""
    most_failures: float
    confidence: float
    seed: int


def read_request(request: Request) -> Asked:
    """What is asked for; mistakes are added to the request's problems."""
    from holdfast.cli.endpoint_options import key_of
    from holdfast.evaluation.judge.answers_store import GenerationSettings, read_prompts
    from holdfast.evaluation.judge.judge import TEMPLATE, JudgeSettings
    from holdfast.support.endpoint import Endpoint

    names = request.texts("answers")
    if len(names) != 1:
        request.problems.append(
            f"expected one file of answers or one model, got {len(names)}{': ' + ', '.join(names) if names else ''}"
        )
    reference = request.required("reference", "the answers or the model to compare with")
    given = [("the candidate", names[0] if len(names) == 1 else ""), ("--reference", reference)]
    if not request.unknown:
        request.problems += [problem for option, name in given if name and (problem := _not_there(option, name))]
    prompts = None
    prompts_file, limit = request.text("prompts", None), request.whole("limit", None, least=1)
    if prompts_file is not None:
        prompts = _noting(request, "--prompts", lambda: read_prompts(prompts_file, limit=limit), None)
    elif any(Path(name).expanduser().is_dir() for _, name in given if name):
        request.problems.append("--prompts is missing: a file with what the models are to answer")
    settings = JudgeSettings(
        model=request.required("judge_model", "the judge's name, as the endpoint knows it"),
        template=_template(request, TEMPLATE),
        max_tokens=request.whole("max_tokens", 8),
        top_logprobs=request.whole("top_logprobs", 20),
    )
    base_url = request.required(
        "base_url", "the endpoint, such as http://localhost:8000/v1 or https://api.openai.com/v1"
    )
    variable, key = key_of(request, base_url, "api_key_env")
    endpoint = Endpoint(
        base_url=base_url,
        api_key=key,
        key_variable=variable,
        workers=request.whole("workers", 4),
        timeout=request.number("timeout", 120.0),
        attempts=request.whole("attempts", 6),
        longest_wait=request.number("longest_wait", 120.0),
    )
    if request.has("judge_model"):
        request.problems += [f"--{problem}" for problem in settings.problems()]
    if base_url:
        request.problems += [f"--{problem}" for problem in endpoint.problems()]
    generation = GenerationSettings(
        max_new_tokens=request.whole("max_new_tokens", 512, least=1),
        batch_size=request.whole("batch_size", 8, least=1),
        chat_template=not request.on("no_chat_template"),
        dtype=request.choice("dtype", ("auto", "float32", "bfloat16", "float16"), "auto"),
        device=None if (device := request.choice("device", ("auto", "cpu", "cuda"), "auto")) == "auto" else device,
        trust_remote_code=request.on("trust_remote_code"),
    )
    confidence, most_failures = request.number("confidence", 0.95), request.number("most_failures", 0.05)
    prices = (request.number("price_in", None), request.number("price_out", None))
    for option, value, fits, expected in (
        ("confidence", confidence, 0 < confidence < 1, "a share between 0 and 1"),
        ("most_failures", most_failures, 0 <= most_failures <= 1, "a share from 0 to 1"),
        ("longest_wait", endpoint.longest_wait, endpoint.longest_wait >= 0, "0 seconds or more"),
        ("price_in", prices[0], prices[0] is None or prices[0] >= 0, "a price a million tokens"),
        ("price_out", prices[1], prices[1] is None or prices[1] >= 0, "a price a million tokens"),
    ):
        if not fits:
            request.problems.append(f"--{option}: expected {expected}, got {value}")
    folder = Path(request.required("output_dir", "the folder for answers, judgements and the result")).expanduser()
    if folder.is_file():
        request.problems.append(f"--output_dir: expected a folder, found a file at {folder}")
    return Asked(
        candidate=given[0][1],
        reference=reference,
        prompts=prompts,
        limit=limit,
        folder=folder,
        settings=settings,
        endpoint=endpoint,
        generation=generation,
        prices=prices,
        most_failures=most_failures,
        confidence=confidence,
        seed=request.whole("seed", 0),
    )


def build_parser() -> RequestParser:
    """The options."""
    usage = "ANSWERS|MODEL --reference ANSWERS|MODEL --judge_model NAME --base_url URL --output_dir FOLDER [options]"
    parser = RequestParser(prog="holdfast judge", description=DESCRIPTION, epilog=EPILOG, usage=usage)
    parser.words("answers", "ANSWERS|MODEL", "the candidate: a file of answers, or a model folder")
    parser.one("reference", "ANSWERS|MODEL", "what it is compared with")
    parser.one(
        "prompts",
        "FILE",
        "what to answer: a column instruction, prompt, question, turns or text (those of the reference's answers)",
    )
    parser.one("limit", "N", "the first N prompts only")
    parser.one("output_dir", "FOLDER", "answers, judgements and result; a later run continues there")
    parser.switch("dry_run", "say how many requests there would be, send and write nothing")
    group = parser.add_argument_group("the judge")
    parser.one("judge_model", "NAME", "its name, as the endpoint knows it", group=group)
    parser.one("base_url", "URL", "the endpoint, such as http://localhost:8000/v1", group=group)
    parser.one(
        "api_key_env",
        "VARIABLE",
        "environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)",
        group=group,
    )
    parser.one(
        "template",
        "FILE",
        "what the judge is sent, with {instruction}, {first} and {second}; it must ask for m or M",
        group=group,
    )
    parser.one("max_tokens", "N", "of a reply (8); hundreds for a judge that reasons first", group=group)
    parser.one("top_logprobs", "N", "alternatives asked for a token, 5 to 20 (20)", group=group)
    parser.one("workers", "N", "requests at once (4)", group=group)
    parser.one("timeout", "SECONDS", "for one attempt (120)", group=group)
    parser.one("attempts", "N", "for one request, with growing pauses between (6)", group=group)
    parser.one(
        "longest_wait", "SECONDS", "of these pauses, and of what the server asks for by Retry-After (120)", group=group
    )
    parser.one(
        "most_failures", "SHARE", "of the requests that may fail for good before the command does (0.05)", group=group
    )
    parser.one("price_in", "PRICE", "a million tokens sent, to show the cost", group=group)
    parser.one("price_out", "PRICE", "a million tokens received", group=group)
    group = parser.add_argument_group("answers of a model")
    parser.one("max_new_tokens", "N", "longest answer (512)", group=group)
    parser.one("batch_size", "N", "prompts at once (8)", group=group)
    parser.switch("no_chat_template", "the bare prompt, where the tokenizer has a chat template too", group=group)
    parser.one("dtype", "auto|float32|bfloat16|float16", "of the weights (auto: as saved)", group=group)
    parser.one("device", "auto|cpu|cuda", "where to generate (auto)", group=group)
    parser.switch("trust_remote_code", "run Python that comes with the model", group=group)
    group = parser.add_argument_group("figures")
    parser.one("confidence", "SHARE", "of the intervals (0.95)", group=group)
    parser.one("seed", "N", "of the bootstrap (0)", group=group)
    return parser


def preview(asked: Asked) -> int:
    """`--dry_run`: what would be generated and asked, and roughly what it costs. Sends nothing, writes nothing."""
    from holdfast.evaluation.judge.answers_store import store_of, unanswered
    from holdfast.evaluation.judge.judge import kept_judgements, missing_questions, questions_of
    from holdfast.support.endpoint import cost

    out = stdout_console()

    def say(line: str) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False)

    say("Dry run: the request is sound; nothing was sent or written.")
    to_generate = {}
    for name in dict.fromkeys((asked.candidate, asked.reference)):
        if _is_model(name) and (
            count := unanswered(store_of(asked.folder, name, asked.generation), asked.prompts or [])
        ):
            to_generate[name] = count
    for name, count in to_generate.items():
        say(f"{name}: {count} of {len(asked.prompts or [])} answers to generate")
    if to_generate:
        say(
            f"requests: up to {2 * len(asked.prompts or [])}, two for each of {len(asked.prompts or [])} prompts; "
            f"known once the answers are there"
        )
        return 0
    candidate, reference = (_answers(name, asked) for name in (asked.candidate, asked.reference))
    pairs = _pairs(candidate, reference, asked)
    questions = questions_of(pairs, asked.settings)
    missing = missing_questions(questions, kept_judgements(asked.folder))
    needed = len({one.key for both in questions for one in both or ()})
    equal = sum(both is None for both in questions)
    say(
        f"requests: {len(missing)} to {asked.endpoint.shown} ({len(pairs)} prompts in both orders; {equal} pairs have "
        f"equal answers, "
        f"{needed - len(missing)} judgements are there already)"
    )
    sent = sum(len(one.message) for one in missing) // 4
    price = cost([(sent, asked.prices[0]), (len(missing) * asked.settings.max_tokens, asked.prices[1])])
    say(
        f"tokens: about {sent:,} sent (4 characters a token)"
        + (f"; cost about {price:.2f}" if price is not None else "")
    )
    return 0


# ------------------------------------------------------------------------------------------------------------ the work


def _answers(name: str, asked: Asked) -> AnswerSet:
    from holdfast.evaluation.judge.answers_store import generated_answers, read_answers, store_of

    if not _is_model(name):
        return read_answers(name)
    with _bar(f"Answering: {Path(name).name}") as report:
        return generated_answers(
            name, asked.prompts or [], store_of(asked.folder, name, asked.generation), asked.generation, progress=report
        )


def _pairs(candidate: AnswerSet, reference: AnswerSet, asked: Asked) -> list[Pair]:
    from holdfast.evaluation.judge.answers_store import check_covered
    from holdfast.evaluation.judge.judge import Pair

    prompts = asked.prompts if asked.prompts is not None else list(reference.answers)[: asked.limit]
    for answers in (candidate, reference):
        check_covered(prompts, answers)
    return [Pair(instruction=p, candidate=candidate.answers[p], reference=reference.answers[p]) for p in prompts]


def _finish(asked: Asked, candidate: AnswerSet, reference: AnswerSet, judged: Judged) -> int:
    """Writes and shows the figures.

    Raises:
        HoldfastError: more requests failed than the request allows.
    """
    from holdfast.evaluation.judge.win_rate import pair_rows, win_rate
    from holdfast.support.files import write_json, write_jsonl

    failures = (
        f"{judged.failed} of {judged.questions} requests failed for good (see {asked.folder / 'judgements.jsonl'})"
    )
    too_many = judged.questions > 0 and judged.failed > asked.most_failures * judged.questions
    try:
        found = win_rate(judged.pairs, confidence=asked.confidence, seed=asked.seed)
    except DataError:
        if too_many:
            raise HoldfastError(
                f"{failures}; no pair was judged in both orders. The same command asks for them again."
            ) from None
        raise
    write_jsonl(asked.folder / SAMPLES, pair_rows(judged.pairs))
    written = write_json(asked.folder / RESULT, record(asked, candidate, reference, judged, found))
    show(found, judged, asked, candidate, reference)
    out = stdout_console()
    out.print(f"\nWritten to {written}", soft_wrap=True, markup=False, highlight=False)
    if too_many:
        raise HoldfastError(
            f"{failures}, more than {asked.most_failures:.0%} (--most_failures). The same command asks for them again."
        )
    return 0


def record(asked: Asked, candidate: AnswerSet, reference: AnswerSet, judged: Judged, found: WinRate) -> dict[str, Any]:
    """What win_rate.json holds."""
    import importlib.metadata

    from holdfast import __version__
    from holdfast.evaluation.judge.judge import TEMPLATE
    from holdfast.support.endpoint import cost

    versions = {name: importlib.metadata.version(name) for name in ("openai", "numpy", "scipy")}
    own = asked.settings.template == TEMPLATE
    return {
        "candidate": {"label": candidate.label, **candidate.identity},
        "reference": {"label": reference.label, **reference.identity},
        "judge": {**asdict(asked.settings), "base_url": asked.endpoint.shown, "own_template": not own},
        **asdict(found),
        "notes": [*candidate.notes, *reference.notes, *judged.notes, *found.notes],
        "judgements": {
            name: getattr(judged, name)
            for name in ("questions", "asked", "judged", "refused", "failed", "by_logprobs", "mean_mass")
        },
        "prompt_tokens": judged.prompt_tokens,
        "completion_tokens": judged.completion_tokens,
        "cost": cost([(judged.prompt_tokens, asked.prices[0]), (judged.completion_tokens, asked.prices[1])]),
        "prices": {"in": asked.prices[0], "out": asked.prices[1]},
        "seed": asked.seed,
        "versions": {"holdfast": __version__, **versions},
    }


def show(found: WinRate, judged: Judged, asked: Asked, candidate: AnswerSet, reference: AnswerSet) -> None:
    """Prints the figures as a table, with what qualifies them below."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.support.endpoint import cost

    out = stdout_console()

    def say(line: str, style: str | None = None) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False, style=style)

    say(f"{candidate.label} against {reference.label}, judged by {asked.settings.model}\n", "bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    table.add_column("")
    for title in ("value", f"{found.confidence:.0%} interval", "standard error", "n"):
        table.add_column(title, justify="right", no_wrap=True)
    controlled = found.length_controlled
    table.add_row(
        "win rate",
        _percent(found.value),
        _interval(found.interval),
        _percent(found.standard_error),
        str(found.n),
        style="bold",
    )
    table.add_row(
        "  at equal lengths*",
        _percent(controlled.value),
        _interval(controlled.interval),
        _percent(controlled.standard_error),
        str(found.n),
    )
    out.print(table)
    share = "-" if found.order_changes is None else f"{found.order_changes:.1%}"
    lines = [
        ("wins, ties, losses", f"{found.wins}, {found.ties} ({found.identical} with equal answers), {found.losses}"),
        ("left out", f"{found.refused} pairs without a verdict, {found.failed} that failed"),
        (
            "position",
            f"the output shown first wins {_percent(found.first_preferred)}; {share} of the pairs change winners with "
            f"the order",
        ),
        (
            "length",
            f"{found.mean_length_candidate:,.0f} against {found.mean_length_reference:,.0f} characters on average",
        ),
        ("verdicts", f"{judged.by_logprobs} of {judged.judged} by log-probability{_mass(judged.mean_mass)}"),
        ("requests", f"{judged.asked} now, {judged.questions - judged.asked} from before; {_tokens(judged)}"),
    ]
    price = cost([(judged.prompt_tokens, asked.prices[0]), (judged.completion_tokens, asked.prices[1])])
    if price is not None:
        lines.append(("cost", f"{price:,.4f}"))
    out.print()
    grid = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    for left, right in lines:
        grid.add_row(left, Text(right))
    out.print(grid)
    say(f"\n* {controlled.label}", "dim")
    for note in (*candidate.notes, *reference.notes, *judged.notes, *found.notes):
        say(f"note: {note}")


# -------------------------------------------------------------------------------------------------------------- options


def _template(request: Request, default: str) -> str:
    file = request.text("template", None)
    if file is None:
        return default
    path = Path(file).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        request.problems.append(f"--template: {path} cannot be read: {getattr(error, 'strerror', None) or error}")
        return default


def _noting(request: Request, option: str, work: Callable[[], Any], default: Any) -> Any:
    try:
        return work()
    except DataError as error:
        request.problems.append(f"{option}: {error}")
        return default


def _is_model(name: str) -> bool:
    return Path(name).expanduser().is_dir()


def _not_there(option: str, name: str) -> str | None:
    from holdfast.errors import did_you_mean

    path = Path(name).expanduser()
    if path.exists():
        return None
    beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return (
        f"{option}: expected a file of answers or a model folder at {name}, found "
        f"nothing.{did_you_mean(path.name, beside)}"
    )


@contextlib.contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped. What was answered and judged is kept in {folder}; the same command goes on from there."
        ) from None


@contextlib.contextmanager
def _bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the remaining time on stderr, where somebody is watching."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = stderr_console()
    columns: Sequence[Any] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


# -------------------------------------------------------------------------------------------------------------- wording


def _percent(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.1%}"


def _interval(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.1%} to {pair[1]:.1%}"


def _mass(value: float | None) -> str:
    return "" if value is None else f", {value:.1%} of it on the two letters"


def _tokens(judged: Judged) -> str:
    return (
        f"{judged.prompt_tokens:,} tokens sent and {judged.completion_tokens:,} received, as the endpoint counts them"
    )
