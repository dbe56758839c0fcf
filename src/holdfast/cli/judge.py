"""`holdfast judge`: how often a language model prefers one model's answers to another's, through any OpenAI-compatible
endpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.cli.checkpoint_options import stderr_console, stdout_console
from holdfast.cli.endpoint_options import EndpointSettings
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import problems_of
from holdfast.config.values import Mistake
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import DataError, HoldfastError, Interrupted
from holdfast.evaluation.judge.settings import (
    TEMPLATE,
    AnsweringSettings,
    GenerationSettings,
    JudgeSettings,
    ReplySettings,
)
from holdfast.support.endpoint import find_key

if TYPE_CHECKING:
    from holdfast.evaluation.judge.answers_store import AnswerSet
    from holdfast.evaluation.judge.judge import Judged, Pair
    from holdfast.evaluation.judge.win_rate import WinRate

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


@dataclass(frozen=True, kw_only=True)
class _Compared:
    answers: Annotated[str, Meta(positional=True, metavar="ANSWERS|MODEL")]
    """The candidate: a file of answers, or a model folder."""
    reference: Annotated[str, Meta(metavar="ANSWERS|MODEL")]
    """What it is compared with: a file of answers, or a model folder."""
    prompts: Annotated[Path | None, Meta(metavar="FILE")] = None
    """What to answer: a column instruction, prompt, question, turns or text (those of the reference's answers)."""
    limit: Annotated[int | None, Meta(ge=1)] = None
    """The first N prompts only."""
    output_dir: Annotated[Path, Meta(metavar="FOLDER")]
    """Folder for answers, judgements and the result; a later run continues there."""
    dry_run: bool = False
    """Says how many requests there would be; sends and writes nothing."""


@dataclass(frozen=True, kw_only=True)
class _Judge:
    settings_group: ClassVar[str] = "the judge"

    judge_model: Annotated[str, Meta(metavar="NAME")]
    """The judge's name, as the endpoint knows it."""
    template: Annotated[Path | None, Meta(metavar="FILE")] = None
    """What the judge is sent, with {instruction}, {first} and {second}; it must ask for m or M."""


@dataclass(frozen=True, kw_only=True)
class _Paid:
    settings_group: ClassVar[str] = "the endpoint"

    api_key_env: Annotated[str | None, Meta(metavar="VARIABLE")] = None
    """Environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)."""
    most_failures: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of the requests that may fail for good before the command does."""
    price_in: Annotated[float | None, Meta(ge=0)] = None
    """Price of a million tokens sent, to show the cost."""
    price_out: Annotated[float | None, Meta(ge=0)] = None
    """Price of a million tokens received."""


@dataclass(frozen=True, kw_only=True)
class _Answering(AnsweringSettings):
    settings_group: ClassVar[str] = "answers of a model"

    no_chat_template: bool = False
    """Gives the bare prompt, where the tokenizer has a chat template too."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to generate."""


@dataclass(frozen=True, kw_only=True)
class JudgeRequest(_Answering, _Paid, EndpointSettings, ReplySettings, _Judge, _Compared):
    """`holdfast judge`."""

    settings_group: ClassVar[str] = "figures"

    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    """Level of the intervals."""
    seed: int = 0
    """Of the bootstrap."""

    def problems(self) -> list[Mistake]:
        """What is wrong with files and folders, with the template and with the key."""
        found = [
            Mistake(path=(key,), text=problem)
            for key in ("answers", "reference")
            if (problem := _not_there(getattr(self, key)))
        ]
        found += self._prompts[1] + self._template[1]
        if self.prompts is None and any(map(_is_model, (self.answers, self.reference))):
            text = "is missing: expected a file with what the models are to answer."
            found.append(Mistake(path=("prompts",), text=text))
        if self.output_dir.is_file():
            text = f"expected a folder, found a file at {self.output_dir}."
            found.append(Mistake(path=("output_dir",), text=text))
        judge = [
            dataclasses.replace(m, path=(_JUDGE.get(str(m.path[0]), m.path[0]),)) for m in problems_of(self.settings)
        ]
        if problem := find_key(self.base_url, self.api_key_env)[2]:
            found.append(Mistake(path=("api_key_env",), text=problem))
        return [*found, *judge, *problems_of(self.endpoint(self.api_key_env))]

    @functools.cached_property
    def _prompts(self) -> tuple[list[str] | None, list[Mistake]]:
        from holdfast.evaluation.judge.answers_store import read_prompts

        try:
            return read_prompts(self.prompts, limit=self.limit) if self.prompts is not None else None, []
        except DataError as error:
            return None, [Mistake(path=("prompts",), text=str(error))]

    @functools.cached_property
    def _template(self) -> tuple[str, list[Mistake]]:
        try:
            return self.template.read_text(encoding="utf-8") if self.template is not None else TEMPLATE, []
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            return TEMPLATE, [Mistake(path=("template",), text=f"{self.template} cannot be read: {reason}.")]

    @property
    def texts(self) -> list[str] | None:
        """The prompts; None: those of the reference's file."""
        return self._prompts[0]

    @property
    def settings(self) -> JudgeSettings:
        """What decides a judgement."""
        return JudgeSettings(model=self.judge_model, template=self._template[0], **_fields(self, ReplySettings))

    @property
    def generation(self) -> GenerationSettings:
        """How models answer."""
        device = None if self.device == "auto" else self.device
        return GenerationSettings(
            chat_template=not self.no_chat_template, device=device, **_fields(self, AnsweringSettings)
        )


_JUDGE = {"model": "judge_model"}
"""What the command calls the judge's settings."""

COMMAND = Command(
    name="holdfast judge",
    request=JudgeRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="ANSWERS|MODEL --reference ANSWERS|MODEL --judge_model NAME --base_url URL --output_dir FOLDER [options]",
)


def _fields(request: JudgeRequest, part: type) -> dict[str, Any]:
    return {s.name: getattr(request, s.name) for s in settings_of(part)}


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast judge --help`."""
    request = COMMAND.read(argv)

    from holdfast.evaluation.judge.judge import judge_pairs

    if request.dry_run:
        return preview(request)
    with _resumable(request.output_dir):
        candidate, reference = (_answers(name, request) for name in (request.answers, request.reference))
        pairs = _pairs(candidate, reference, request)
        with _bar("Judging") as report:
            judged = judge_pairs(
                pairs, request.settings, request.endpoint(request.api_key_env), request.output_dir, progress=report
            )
    return _finish(request, candidate, reference, judged)


def preview(request: JudgeRequest) -> int:
    """`--dry_run`: what would be generated and request, and roughly what it costs. Sends nothing, writes nothing."""
    from holdfast.evaluation.judge.answers_store import store_of, unanswered
    from holdfast.evaluation.judge.judge import kept_judgements, missing_questions, questions_of
    from holdfast.support.endpoint import cost

    out = stdout_console()

    def say(line: str) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False)

    say("Dry run: the request is sound; nothing was sent or written.")
    to_generate = {}
    for name in dict.fromkeys((request.answers, request.reference)):
        if _is_model(name) and (
            count := unanswered(store_of(request.output_dir, name, request.generation), request.texts or [])
        ):
            to_generate[name] = count
    for name, count in to_generate.items():
        say(f"{name}: {count} of {len(request.texts or [])} answers to generate")
    if to_generate:
        say(
            f"requests: up to {2 * len(request.texts or [])}, two for each of {len(request.texts or [])} prompts; "
            f"known once the answers are there"
        )
        return 0
    candidate, reference = (_answers(name, request) for name in (request.answers, request.reference))
    pairs = _pairs(candidate, reference, request)
    questions = questions_of(pairs, request.settings)
    missing = missing_questions(questions, kept_judgements(request.output_dir))
    needed = len({one.key for both in questions for one in both or ()})
    equal = sum(both is None for both in questions)
    address = request.endpoint(request.api_key_env).shown
    say(
        f"requests: {len(missing)} to {address} ({len(pairs)} prompts in both orders; {equal} pairs have equal answers, "
        f"{needed - len(missing)} judgements are there already)"
    )
    sent = sum(len(one.message) for one in missing) // 4
    price = cost([(sent, request.price_in), (len(missing) * request.settings.max_tokens, request.price_out)])
    say(
        f"tokens: about {sent:,} sent (4 characters a token)"
        + (f"; cost about {price:.2f}" if price is not None else "")
    )
    return 0


# ------------------------------------------------------------------------------------------------------------ the work


def _answers(name: str, request: JudgeRequest) -> AnswerSet:
    from holdfast.evaluation.judge.answers_store import generated_answers, read_answers, store_of

    if not _is_model(name):
        return read_answers(name)
    with _bar(f"Answering: {Path(name).name}") as report:
        return generated_answers(
            name,
            request.texts or [],
            store_of(request.output_dir, name, request.generation),
            request.generation,
            progress=report,
        )


def _pairs(candidate: AnswerSet, reference: AnswerSet, request: JudgeRequest) -> list[Pair]:
    from holdfast.evaluation.judge.answers_store import check_covered
    from holdfast.evaluation.judge.judge import Pair

    prompts = request.texts if request.texts is not None else list(reference.answers)[: request.limit]
    for answers in (candidate, reference):
        check_covered(prompts, answers)
    return [Pair(instruction=p, candidate=candidate.answers[p], reference=reference.answers[p]) for p in prompts]


def _finish(request: JudgeRequest, candidate: AnswerSet, reference: AnswerSet, judged: Judged) -> int:
    """Writes and shows the figures.

    Raises:
        HoldfastError: more requests failed than the request allows.
    """
    from holdfast.evaluation.judge.win_rate import pair_rows, win_rate
    from holdfast.support.files import write_json, write_jsonl

    failures = f"{judged.failed} of {judged.questions} requests failed for good (see {request.output_dir / 'judgements.jsonl'})"
    too_many = judged.questions > 0 and judged.failed > request.most_failures * judged.questions
    try:
        found = win_rate(judged.pairs, confidence=request.confidence, seed=request.seed)
    except DataError:
        if too_many:
            raise HoldfastError(
                f"{failures}; no pair was judged in both orders. The same command asks for them again."
            ) from None
        raise
    write_jsonl(request.output_dir / SAMPLES, pair_rows(judged.pairs))
    written = write_json(request.output_dir / RESULT, record(request, candidate, reference, judged, found))
    show(found, judged, request, candidate, reference)
    out = stdout_console()
    out.print(f"\nWritten to {written}", soft_wrap=True, markup=False, highlight=False)
    if too_many:
        raise HoldfastError(
            f"{failures}, more than {request.most_failures:.0%} (--most_failures). The same command asks for them again."
        )
    return 0


def record(
    request: JudgeRequest, candidate: AnswerSet, reference: AnswerSet, judged: Judged, found: WinRate
) -> dict[str, Any]:
    """What win_rate.json holds."""
    import importlib.metadata

    from holdfast import __version__
    from holdfast.support.endpoint import cost

    versions = {name: importlib.metadata.version(name) for name in ("openai", "numpy", "scipy")}
    own = request.settings.template == TEMPLATE
    return {
        "candidate": {"label": candidate.label, **candidate.identity},
        "reference": {"label": reference.label, **reference.identity},
        "judge": {
            **asdict(request.settings),
            "base_url": request.endpoint(request.api_key_env).shown,
            "own_template": not own,
        },
        **asdict(found),
        "notes": [*candidate.notes, *reference.notes, *judged.notes, *found.notes],
        "judgements": {
            name: getattr(judged, name)
            for name in ("questions", "asked", "judged", "refused", "failed", "by_logprobs", "mean_mass")
        },
        "prompt_tokens": judged.prompt_tokens,
        "completion_tokens": judged.completion_tokens,
        "cost": cost([(judged.prompt_tokens, request.price_in), (judged.completion_tokens, request.price_out)]),
        "prices": {"in": request.price_in, "out": request.price_out},
        "seed": request.seed,
        "versions": {"holdfast": __version__, **versions},
    }


def show(found: WinRate, judged: Judged, request: JudgeRequest, candidate: AnswerSet, reference: AnswerSet) -> None:
    """Prints the figures as a table, with what qualifies them below."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.support.endpoint import cost

    out = stdout_console()

    def say(line: str, style: str | None = None) -> None:
        out.print(line, soft_wrap=True, markup=False, highlight=False, style=style)

    say(f"{candidate.label} against {reference.label}, judged by {request.settings.model}\n", "bold")
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
    price = cost([(judged.prompt_tokens, request.price_in), (judged.completion_tokens, request.price_out)])
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


def _is_model(name: str) -> bool:
    return Path(name).expanduser().is_dir()


def _not_there(name: str) -> str:
    path = Path(name).expanduser()
    if path.exists():
        return ""
    return f"expected a file of answers or a model folder at {name}, found nothing.{nearest_sibling(path)}"


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
