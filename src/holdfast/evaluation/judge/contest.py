"""Two sets of answers before a judge: what would be asked, the answers, the judgements and the record of what came of
it. Everything is kept in one folder the moment it is there, so that the same contest goes on where it was stopped."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoints.named import located
from holdfast.errors import ConfigError, DataError, HoldfastError
from holdfast.evaluation.judge.answers_store import (
    AnswerSet,
    check_covered,
    generated_answers,
    read_answers,
    store_of,
    unanswered,
)
from holdfast.evaluation.judge.judge import (
    AnswerPair,
    Judged,
    judge_pairs,
    kept_judgements,
    missing_questions,
    questions_of,
)
from holdfast.evaluation.judge.settings import TEMPLATE, GenerationSettings, JudgeSettings
from holdfast.evaluation.judge.win_rate import WinRate, pair_rows, win_rate
from holdfast.support.endpoint import Endpoint, cost, missing_package
from holdfast.support.files import write_json, write_jsonl
from holdfast.support.paths import expanded
from holdfast.support.progress import counted

RESULT, SAMPLES = "win_rate.json", "win_rate.samples.jsonl"


def is_model(name: str) -> bool:
    """Whether a side of a contest is a model folder, whose answers are generated, and no file of answers.

    Raises:
        ModelError: `holdfast models get` can make it, and has not.
    """
    return expanded(located(name)).is_dir()


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What is judged, by whom, and where it is kept."""

    answers: str
    """The candidate: a file of answers, or a model folder."""
    reference: str
    """Likewise, what it is compared with."""
    prompts: list[str] | None
    """What is answered; None: the prompts of the reference's file."""
    limit: int | None
    """The first prompts of the reference's file only."""
    folder: Path
    settings: JudgeSettings
    generation: GenerationSettings
    endpoint: Endpoint
    prices: tuple[float | None, float | None] = (None, None)
    """Of a million tokens sent, and received."""
    most_failures: float = 0.05
    """Share of the requests that may fail for good."""
    confidence: float = 0.95
    seed: int = 0

    def preview(self) -> Iterator[str]:
        """What would be generated and requested, and roughly what it costs, in lines. Sends nothing, writes nothing."""
        yield "Dry run: the request is sound; nothing was sent or written."
        prompts = self.prompts or []
        missing = {
            name: unanswered(store_of(self.folder, name, self.generation), prompts)
            for name in dict.fromkeys((self.answers, self.reference))
            if is_model(name)
        }
        for name, count in missing.items():
            if count:
                yield f"{name}: {count} of {len(prompts)} answers to generate"
        if any(missing.values()):
            each = f"two for each of {len(prompts)} prompts; known once the answers are there"
            yield f"requests: up to {2 * len(prompts)}, {each}"
            return
        pairs = self.pairs(*self.answer_sets())
        questions = questions_of(pairs, self.settings)
        open_ = missing_questions(questions, kept_judgements(self.folder))
        there = len({one.key for both in questions for one in both or ()}) - len(open_)
        equal = sum(both is None for both in questions)
        yield (
            f"requests: {len(open_)} to {self.endpoint.shown} ({len(pairs)} prompts in both orders; {equal} pairs have "
            f"equal answers, {there} judgements are there already)"
        )
        sent = sum(len(one.message) for one in open_) // 4
        price = self.cost(sent, len(open_) * self.settings.max_tokens)
        estimate = f"; cost about {price:.2f}" if price is not None else ""
        yield f"tokens: about {sent:,} sent (4 characters a token){estimate}"

    def cost(self, sent: int, received: int) -> float | None:
        """The price of so many tokens; None where no price is known."""
        return cost([(sent, self.prices[0]), (received, self.prices[1])])

    def answer_sets(self) -> tuple[AnswerSet, AnswerSet]:
        """The candidate's answers and the reference's; those of models are generated as far as they are missing.

        Raises:
            DataError: a file without usable answers, prompts that fill a model's context.
            ModelError: a model that cannot be loaded.
        """
        return self._answers(self.answers), self._answers(self.reference)

    def _answers(self, name: str) -> AnswerSet:
        if not is_model(name):
            return read_answers(name)
        store = store_of(self.folder, name, self.generation)
        with counted(f"Answering: {Path(name).name}") as report:
            return generated_answers(name, self.prompts or [], store, self.generation, progress=report)

    def pairs(self, candidate: AnswerSet, reference: AnswerSet) -> list[AnswerPair]:
        """The answers to each prompt side by side.

        Raises:
            DataError: prompts that one of the two has no answer to.
        """
        prompts = self.prompts if self.prompts is not None else list(reference.answers)[: self.limit]
        for answers in (candidate, reference):
            check_covered(prompts, answers)
        return [
            AnswerPair(instruction=p, candidate=candidate.answers[p], reference=reference.answers[p]) for p in prompts
        ]

    def hold(self) -> Outcome:
        """Has every pair judged and writes the figures.

        Raises:
            ConfigError: the package that asks is not installed.
            DataError: answers or judgements that give no win rate.
            HoldfastError: the endpoint cannot be used, or no pair was judged because too many requests failed.
        """
        if problems := missing_package("judging"):  # before models write what is to be judged
            raise ConfigError(problems)
        candidate, reference = self.answer_sets()
        pairs = self.pairs(candidate, reference)
        with counted("Judging") as report:
            judged = judge_pairs(pairs, self.settings, self.endpoint, self.folder, progress=report)
        try:
            found = win_rate(judged.pairs, confidence=self.confidence, seed=self.seed)
        except DataError:
            if not self._too_many(judged):
                raise
            raise HoldfastError(f"{self._failures(judged)}; no pair was judged in both orders. {_AGAIN}") from None
        outcome = Outcome(contest=self, candidate=candidate, reference=reference, judged=judged, found=found)
        write_jsonl(self.folder / SAMPLES, pair_rows(judged.pairs))
        write_json(self.folder / RESULT, outcome.record())
        return outcome

    def _too_many(self, judged: Judged) -> bool:
        return judged.questions > 0 and judged.failed > self.most_failures * judged.questions

    def _failures(self, judged: Judged) -> str:
        where = self.folder / "judgements.jsonl"
        return f"{judged.failed} of {judged.questions} requests failed for good (see {where})"


_AGAIN = "The same command asks for them again."


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a contest."""

    contest: Contest
    candidate: AnswerSet
    reference: AnswerSet
    judged: Judged
    found: WinRate

    @property
    def notes(self) -> list[str]:
        """What qualifies the figures."""
        return [*self.candidate.notes, *self.reference.notes, *self.judged.notes, *self.found.notes]

    @property
    def cost(self) -> float | None:
        """What the tokens cost, as the endpoint counts them; None without prices."""
        return self.contest.cost(self.judged.prompt_tokens, self.judged.completion_tokens)

    @property
    def path(self) -> Path:
        """The file with the record."""
        return self.contest.folder / RESULT

    def check(self) -> None:
        """Holds the failures against what the contest allows.

        Raises:
            HoldfastError: more requests failed than that.
        """
        if self.contest._too_many(self.judged):
            allowed = f"more than {self.contest.most_failures:.0%} (--most_failures)"
            raise HoldfastError(f"{self.contest._failures(self.judged)}, {allowed}. {_AGAIN}")

    def record(self) -> dict[str, Any]:
        """What win_rate.json holds."""
        from holdfast import __version__

        contest, judged = self.contest, self.judged
        counts = ("questions", "asked", "judged", "refused", "failed", "by_logprobs", "mean_mass")
        judge = {"base_url": contest.endpoint.shown, "own_template": contest.settings.template != TEMPLATE}
        versions = {name: importlib.metadata.version(name) for name in ("openai", "numpy", "scipy")}
        return {
            "candidate": {"label": self.candidate.label, **self.candidate.identity},
            "reference": {"label": self.reference.label, **self.reference.identity},
            "judge": {**asdict(contest.settings), **judge},
            **asdict(self.found),
            "notes": self.notes,
            "judgements": {name: getattr(judged, name) for name in counts},
            "prompt_tokens": judged.prompt_tokens,
            "completion_tokens": judged.completion_tokens,
            "cost": self.cost,
            "prices": dict(zip(("in", "out"), contest.prices, strict=True)),
            "seed": contest.seed,
            "versions": {"holdfast": __version__, **versions},
        }
