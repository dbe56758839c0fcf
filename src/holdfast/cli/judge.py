"""`holdfast judge`: how often a language model prefers one model's answers to another's, through any OpenAI-compatible
endpoint."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.checkpoints.named import located
from holdfast.cli.console import print_line, stdout_console, stoppable
from holdfast.cli.endpoint_options import EndpointSettings
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import problems_of
from holdfast.config.values import Mistake
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.judge.settings import (
    TEMPLATE,
    AnsweringSettings,
    GenerationSettings,
    JudgeSettings,
    ReplySettings,
)
from holdfast.support.endpoint import find_key
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.evaluation.judge.contest import Contest

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
  holdfast judge tuned --reference base --prompts prompts.jsonl --judge_model gpt-4o \\
      --base_url https://api.openai.com/v1 --output_dir judged --price_in 2.5 --price_out 10 --dry_run

the key
  is read from an environment variable, never from the command line, and is never written. For api.openai.com that is
  OPENAI_API_KEY; for any other endpoint name the variable with --api_key_env, or no key is sent.
"""


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
        found, places = [], []
        for key in ("answers", "reference"):
            name = getattr(self, key)
            try:
                path = expanded(located(name))
            except ModelError as error:
                found.append(Mistake(path=(key,), text=str(error)))
                continue
            places.append(path)
            if not path.exists():
                text = f"expected a file of answers or a model folder at {name}, found nothing.{nearest_sibling(path)}"
                found.append(Mistake(path=(key,), text=text))
        found += self._prompts[1] + self._template[1]
        if self.prompts is None and any(path.is_dir() for path in places):
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
    def settings(self) -> JudgeSettings:
        """What decides a judgement."""
        return JudgeSettings(model=self.judge_model, template=self._template[0], **_fields(self, ReplySettings))

    def contest(self) -> Contest:
        """What is judged, by whom, and where it is kept."""
        from holdfast.evaluation.judge.contest import Contest

        device = None if self.device == "auto" else self.device
        answering = _fields(self, AnsweringSettings)
        return Contest(
            answers=self.answers,
            reference=self.reference,
            prompts=self._prompts[0],
            limit=self.limit,
            folder=self.output_dir,
            settings=self.settings,
            generation=GenerationSettings(chat_template=not self.no_chat_template, device=device, **answering),
            endpoint=self.endpoint(self.api_key_env),
            prices=(self.price_in, self.price_out),
            most_failures=self.most_failures,
            confidence=self.confidence,
            seed=self.seed,
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
    contest, target = request.contest(), stdout_console()
    if request.dry_run:
        for line in contest.preview():
            print_line(target, line)
        return 0

    from holdfast.reports.judge_text import judge_blocks
    from holdfast.reports.terminal import Printer

    kept = f"What was answered and judged is kept in {request.output_dir}"
    with stoppable(f"Stopped. {kept}; the same command goes on from there."):
        outcome = contest.hold()
    Printer(target).show(judge_blocks(outcome))
    outcome.check()
    return 0
