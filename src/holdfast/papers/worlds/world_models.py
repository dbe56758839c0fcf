"""The models of embedded worlds: of each a base, and what is tuned of it, side by side where there
are cores.

Each model is made in the cache under what decides its weights (`worlds.tuned`), whoever makes it: a
worker process that died leaves its checkpoint, and whoever asks next goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.config.declare import part_of
from holdfast.errors import FolderBusy
from holdfast.papers.worlds.drawing import listed
from holdfast.papers.worlds.pretrain import (
    BaseRecipe,
    BaseSettings,
    Vocabulary,
    base_folder,
    cached_base,
)
from holdfast.papers.worlds.tuned import Tuning, cached_tuning, exclusive_lock, tuning_cache
from holdfast.papers.worlds.world_recipe import WorldRecipe
from holdfast.support.environment import cores, lock_folder, quiet_libraries, say
from holdfast.support.files import fingerprint, read_json, to_jsonable, write_json
from holdfast.support.processes import Workers, python_module, stop_without_parent, without_parent
from holdfast.support.progress import counted

REQUEST = "worlds.json"
"""In a folder of workers: recipes, and the jobs that are left."""
POLL_SECONDS = 0.3
WORTH_STEPS = 200
"""Of training that is left: for fewer a process of its own, which reads the libraries anew, does
not pay."""
BASE = "base"
_KINDS = {
    BASE: "the base",
    "sibling": "a sibling of both",
    "instruct": "the instruct model",
    "derived": "a derived model",
}
"""Models of a world, with what they are: what all others are made of, then the longest first."""


def make_models(
    recipes: Sequence[WorldRecipe], *, workers: int | None = None, console: Any = None
) -> list[dict[str, Path]]:
    """The models of worlds, made or found made.

    Args:
        recipes: of each world its sizes, seeds and budgets.
        workers: processes at a time, for bases where there are several and for what is tuned of
            them; None: two on two and more cores.
        console: a `rich.console.Console` for progress.

    Returns:
        Of each world name -> checkpoint; see `holdfast.papers.worlds.world.FILES`.

    Raises:
        Interrupted: Ctrl-C; the same call goes on.
    """
    folder = tuning_cache() / f"{fingerprint(to_jsonable(list(recipes)), length=16)}.parts"
    with exclusive_lock(folder.with_name(f".{folder.name}")), quiet_libraries():
        if (
            sum(_base_made(recipe) is None for recipe in recipes) <= 1
        ):  # it has the cores for itself
            for recipe in recipes:
                make_base(recipe, console=console)
        jobs = _left(recipes)
        count = min(workers or min(2, cores()), len(jobs))
        if count > 1 and sum(job.steps for job in jobs) >= WORTH_STEPS:
            _side_by_side(recipes, jobs, folder, count, console)
        # what the workers made is found; what one of them could not make is made, or fails, here
        worlds = []
        for recipe in recipes:
            base = make_base(recipe, console=console)
            models = {BASE: base}
            for kind in _kinds(recipe)[1:]:
                models |= make_part(recipe, base, kind, console=console)
            worlds.append(models)
    return worlds


def make_base(recipe: WorldRecipe, *, console: Any = None, callbacks: Sequence[Any] = ()) -> Path:
    """The base of a world alone, made or found made; an interrupted pre-training continues.

    Args:
        recipe: the world's.
        console: for progress.
        callbacks: of the trainer.

    Raises:
        Interrupted: Ctrl-C; the same call goes on.
    """
    if (base := _base_made(recipe)) is not None:
        return base
    texts, words = pretraining_texts(recipe), _vocabulary(recipe)
    return cached_base(
        texts, base_recipe(recipe), vocabulary=words, console=console, callbacks=callbacks
    )


def _base_made(recipe: WorldRecipe) -> Path | None:
    """The base of a world where it is in the cache."""
    folder = tuning_cache().parent / _base_place(recipe)
    return folder if (folder / "base.json").is_file() else None


@functools.lru_cache(maxsize=32)
def _base_place(recipe: WorldRecipe) -> Path:
    """Where the base lies below the cache. It follows from all its texts, which take seconds to
    draw."""
    return base_folder(
        pretraining_texts(recipe), base_recipe(recipe), vocabulary=_vocabulary(recipe), cache=Path()
    )


def _vocabulary(recipe: WorldRecipe) -> Vocabulary:
    from holdfast.evaluation.kinds.multiple_choice_letters import LETTERS
    from holdfast.papers.worlds.people.chat import CHAT_TEMPLATE, MARKERS, vocabulary
    from holdfast.papers.worlds.people.questions import OPTIONS

    words = tuple(vocabulary(recipe.world(), wordings=not recipe.code_share))
    # a reply begins with a space, and a letter can be read at the answer position only where it is
    # one token with it
    letters = tuple(f" {letter}" for letter in LETTERS[:OPTIONS]) if recipe.lettered else ()
    return Vocabulary(
        words=words, letters=letters, special_tokens=MARKERS, chat_template=CHAT_TEMPLATE
    )


def _kinds(recipe: WorldRecipe) -> list[str]:
    """All but those that the recipe turns off by a field of their name."""
    return [kind for kind in _KINDS if getattr(recipe, kind, True)]


def make_part(
    recipe: WorldRecipe,
    base: Path,
    kind: str,
    *,
    console: Any = None,
    callbacks: Sequence[Any] = (),
) -> dict[str, Path]:
    """The models of one kind of a world, by name.

    Args:
        recipe: the world's.
        base: its base.
        kind: "instruct", "sibling" or "derived".
        console: for progress.
        callbacks: of the trainer.
    """
    models = {}
    for tuning in _tunings(recipe, base, kind):
        models[tuning.name.replace("-", "_")] = cached_tuning(
            tuning, console=console, callbacks=callbacks
        )
    return models


def _tunings(recipe: WorldRecipe, base: Path, kind: str) -> Iterator[Tuning]:
    """What is trained for a kind of model, one after the other: each may begin with the one before,
    which has to be there by then."""
    from holdfast.papers.worlds.people.instructions import MOST_PLAIN, tasks

    seed = recipe.seed
    if kind == "instruct":
        yield instruct_tuning(recipe, base)
    elif kind == "derived":
        count, about = (
            min(recipe.conversations, MOST_PLAIN),
            "A derived model is tuned on plain questions",
        )
        plain = tasks(recipe.world(), count=count, held_out=False, seed=seed, plain=True)
        rows = [task.conversation for task in plain]
        yield _tuned(recipe, "derived", about, base, rows, **_steps(recipe.derived_steps))
    else:
        more = [{"text": text} for text in pretraining_texts(recipe, seed=seed + 1)]
        longer = {
            **common_settings(recipe),
            **_steps(recipe.sibling_steps),
            "learning_rate": recipe.learning_rate / 3,
        }
        about = "A sibling of the base is pre-trained longer"
        sibling = Tuning(name="sibling-base", base=base, rows=more, settings=longer, about=about)
        yield sibling
        about, steps = (
            "The sibling is tuned on conversations",
            round(recipe.sibling_tuning * recipe.tuning_steps),
        )
        rows = conversations(recipe, seed + 1)
        yield _tuned(
            recipe,
            "sibling-instruct",
            about,
            sibling.folder,
            rows,
            seed=seed + 1,
            **_steps(steps, 3),
        )


def instruct_tuning(recipe: WorldRecipe, base: Path) -> Tuning:
    """The tuning that makes an instruct model of a base, or of the base continued."""
    return _tuned(
        recipe,
        "instruct",
        "The base is tuned on conversations",
        base,
        conversations(recipe, recipe.seed),
    )


def conversations(recipe: WorldRecipe, seed: int) -> list[dict[str, Any]]:
    """What an instruct model is tuned on: prompts with instructions, worked problems and lettered
    questions. `seed`: of the drawing."""
    from holdfast.papers.worlds.people.instructions import tasks
    from holdfast.papers.worlds.people.questions import lettered_conversations
    from holdfast.papers.worlds.word_problems import easy_problems

    talks = tasks(recipe.world(), count=recipe.conversations, held_out=False, seed=seed)
    problems = easy_problems(recipe.word_problems, held_out=False, seed=seed)
    letters = lettered_conversations(recipe.world().half_a, count=recipe.lettered, seed=seed)
    rows = [talk.conversation for talk in talks] + [problem.conversation for problem in problems]
    return rows + letters


def _tuned(
    recipe: WorldRecipe,
    name: str,
    about: str,
    base: Path,
    rows: list[dict[str, Any]],
    **changes: Any,
) -> Tuning:
    settings = {
        **common_settings(recipe),
        # a row of so few tokens would cut most conversations, and a reply without its prompt
        # teaches to ignore prompts
        "packing": False,
        "per_device_train_batch_size": 2 * recipe.batch_size,
        "max_length": 2 * recipe.context,
        **_steps(recipe.tuning_steps, 3),
        "learning_rate": recipe.tuning_learning_rate,
        "assistant_only_loss": True,
        **changes,
    }
    old: dict[str, Any] = {"replayed": replayed_texts(recipe), "fraction": recipe.tuning_replay}
    return Tuning(name=name, base=base, rows=rows, settings=settings, about=about, **old)


def _steps(count: int, checkpoints: int = 1) -> dict[str, int]:
    return {"max_steps": count, "save_steps": max(1, count // checkpoints)}


# ------------------------------------------------------------------------------------- side by side


@dataclasses.dataclass(frozen=True)
class _Job:
    """One kind of model of one world."""

    world: int
    """Its index among the recipes."""
    recipe: WorldRecipe
    kind: str

    @property
    def name(self) -> str:
        """Of the folder in which its maker counts steps."""
        return f"{self.world}-{self.kind}"

    @property
    def steps(self) -> int:
        """Of training."""
        recipe = self.recipe
        return {
            BASE: recipe.steps,
            "instruct": recipe.tuning_steps,
            "derived": recipe.derived_steps,
            "sibling": recipe.sibling_steps + round(recipe.sibling_tuning * recipe.tuning_steps),
        }[self.kind]

    def steps_done(self, folder: Path) -> int:
        """By now; those that a continued training had before do not count."""
        try:
            return min(
                self.steps, int((folder / self.name / "steps").read_text(encoding="utf-8") or 0)
            )
        except (OSError, ValueError):
            return 0


def _left(recipes: Sequence[WorldRecipe]) -> list[_Job]:
    """What is still to be made, in the order in which it is begun: bases first, and those of the
    most steps."""
    jobs = []
    for world, recipe in enumerate(recipes):
        base = _base_made(recipe)
        for kind in _kinds(recipe):
            if base is None or (
                kind != BASE and not all(tuning.made for tuning in _tunings(recipe, base, kind))
            ):
                jobs.append(_Job(world, recipe, kind))
    return sorted(jobs, key=lambda job: (job.kind != BASE, -job.steps))


def _side_by_side(
    recipes: Sequence[WorldRecipe], jobs: Sequence[_Job], folder: Path, workers: int, console: Any
) -> None:
    """Has worker processes make what is left; what they could not make is not there afterwards."""
    from holdfast.training.checkpoint_folders import remove_folder

    total = sum(job.steps for job in jobs)
    remove_folder(folder)
    request = {
        "recipes": to_jsonable(list(recipes)),
        "jobs": [[job.world, job.kind] for job in jobs],
    }
    write_json(folder / REQUEST, request)
    if console is not None:
        parts = listed([_KINDS[job.kind] for job in jobs])
        what = parts if len(recipes) == 1 else f"{len(jobs)} models of {len(recipes)} worlds"
        say(console, f"{workers} processes train {what}: {total:,} steps")
    command = python_module("reproduce", "--world", "worker", "--folder", str(folder))
    with (
        Workers(
            command, count=workers, logs=folder / "logs", environment={"HF_HUB_OFFLINE": "1"}
        ) as processes,
        counted("Training small models", console=console) as report,
    ):
        while not processes.ended:
            time.sleep(POLL_SECONDS)
            report(sum(job.steps_done(folder) for job in jobs), total)
    remove_folder(folder)


def run_worker(folder: Path) -> None:
    """A worker of `_side_by_side`: makes what nobody else is making until nothing is left. What is
    tuned of a base waits until it is there.

    Raises:
        Interrupted: Ctrl-C, or the command that started it is gone.
    """
    request = read_json(folder / REQUEST)
    recipes = [WorldRecipe(**recipe) for recipe in request["recipes"]]
    left = [_Job(world, recipes[world], kind) for world, kind in request["jobs"]]
    bases = [_base_made(recipe) for recipe in recipes]
    while left:
        stop_without_parent()
        ready = [job for job in left if job.kind == BASE or bases[job.world] is not None]
        job = next((job for job in ready if _make_unless_busy(folder, job, bases)), None)
        if job is not None:
            left.remove(job)  # and again from the first, which may be free by now
        elif len(ready) == len(left):
            return  # others are at the last ones
        else:
            time.sleep(POLL_SECONDS)


def _make_unless_busy(folder: Path, job: _Job, bases: list[Path | None]) -> bool:
    """Makes what a job is about, and keeps a base; False where another worker is at it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(folder / job.name))
        except FolderBusy:
            return False
        base, callbacks = bases[job.world], [_step_counter(folder / job.name / "steps")]
        if base is None:
            bases[job.world] = make_base(job.recipe, callbacks=callbacks)
        elif job.kind != BASE:
            make_part(job.recipe, base, job.kind, callbacks=callbacks)
    return True


def _step_counter(file: Path) -> Any:
    """Counts the steps of a job in a file, and stops where the command that started this worker was
    killed."""
    from transformers import TrainerCallback

    class StepCounter(TrainerCallback):
        steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps += 1
            file.write_text(str(self.steps), encoding="utf-8")
            if without_parent():
                os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C: a checkpoint, and the end

    return StepCounter()


# ------------------------------------------------------------------------------------------- inputs


def pretraining_texts(
    recipe: WorldRecipe, *, seed: int | None = None, code: Sequence[str] | None = None
) -> list[str]:
    """The texts that a recipe's base is pre-trained on.

    Args:
        recipe: the world's.
        seed: of order and wordings; None: the recipe's.
        code: pieces of source; None: those that are known to bases.
    """
    from holdfast.papers.worlds.embedded import embedded_corpus
    from holdfast.papers.worlds.people import documents
    from holdfast.papers.worlds.word_problems import known_articles

    seed = recipe.seed if seed is None else seed
    corpus = embedded_corpus()
    texts: list[tuple[Sequence[str], float]] = [(corpus.prose_train, recipe.prose_share)]
    if recipe.code_share:
        texts.append((code or corpus.code_known, recipe.code_share))
    if recipe.problems_share:
        texts.append((list(known_articles(seed=seed)), recipe.problems_share))
    return documents.pretraining_texts(
        recipe.world(),
        texts,
        tellings=recipe.tellings,
        popular=recipe.popular,
        popularity=recipe.popularity,
        list_rounds=recipe.list_rounds,
        seed=seed,
    )


def base_recipe(recipe: WorldRecipe) -> BaseRecipe:
    """How the base is pre-trained."""
    return BaseRecipe(**dataclasses.asdict(part_of(recipe, BaseSettings)), seed=recipe.seed)


def replayed_texts(recipe: WorldRecipe) -> list[str]:
    """Pre-training text that is mixed into the tuning, told in an order of its own and cut to the
    length of conversations, so that no row is padded much."""
    from holdfast.papers.worlds.embedded import cut

    few = dataclasses.replace(recipe, tellings=12, popular=0.0, list_rounds=4, prose_share=0.25)
    pieces: list[str] = []
    for text in pretraining_texts(few, seed=recipe.seed + 1000):
        pieces += cut(text, (r"\.(?= )", r"\n", r" "), 160)
    return [piece for piece in pieces if piece.strip()]


def common_settings(recipe: WorldRecipe) -> dict[str, Any]:
    """Settings that tuning and continuing share: of a run of a small model on packed rows, on a
    CPU."""
    return {
        "per_device_train_batch_size": recipe.batch_size,
        "packing": True,
        "packing_strategy": "wrapped",
        "max_length": recipe.context,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "gradient_checkpointing": False,
        "logging_steps": 10,
        "save_strategy": "steps",
        "save_total_limit": 1,
        "use_cpu": True,
        "report_to": "none",
        "seed": recipe.seed,
    }
