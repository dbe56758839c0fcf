"""The models of an embedded world: a base, and what is tuned of it, side by side where there are cores.

Each part is made in the cache under what decides its weights (`holdfast.worlds.tuned`), whoever makes it: a worker
process that died leaves its checkpoint, and whoever asks next goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config.declare import part_of
from holdfast.errors import FolderBusy
from holdfast.support.files import fingerprint, read_json, to_jsonable, write_json
from holdfast.worlds.drawing import listed
from holdfast.worlds.pretrain import BaseRecipe, BaseSettings, Vocabulary, cached_base
from holdfast.worlds.tuned import Tuning, cached_tuning, exclusive_lock, small_run, tuning_cache

if TYPE_CHECKING:
    from holdfast.worlds.people.facts import World
    from holdfast.worlds.world import WorldRecipe

REQUEST = "world.json"
"""In a folder of workers: recipe and base."""
POLL_SECONDS = 0.3
WORTH_STEPS = 200
"""Of training that is left: for fewer a process of its own, which reads the libraries anew, does not pay."""
_PARTS = {
    "instruct": "the instruct model",
    "sibling": "a sibling of both",
    "derived": "another child of the base",
}
"""Parts that are made of a base, with what they are."""


def make_models(
    recipe: WorldRecipe, world: World, *, workers: int | None = None, console: Any = None
) -> dict[str, Path]:
    """The models of a world, made or found made.

    Args:
        recipe: sizes, seeds and budgets.
        world: its people.
        workers: processes at a time for what is tuned of the base; None: two on two and more cores.
        console: a `rich.console.Console` for progress.

    Returns:
        Name -> checkpoint; see `holdfast.worlds.world.FILES`.

    Raises:
        Interrupted: Ctrl-C; the same call goes on.
    """
    from holdfast.support.environment import cores, quiet_libraries

    with exclusive_lock(tuning_cache()), quiet_libraries():
        base = make_base(recipe, console=console)
        parts = [
            *(["sibling"] if recipe.sibling else []),
            "instruct",
            *(["derived"] if recipe.derived else []),
        ]  # the longest first
        left = [part for part in parts if not all(t.made for t in _tunings(recipe, base, part))]
        several = min(workers if workers is not None else min(2, cores()), len(left))
        if several > 1 and sum(_steps_of(recipe, part) for part in left) >= WORTH_STEPS:
            _side_by_side(recipe, base, left, several, console)
        made = {"base": base}
        for part in parts:  # what the workers made is found; what one of them could not make is made, or fails, here
            made |= make_part(recipe, base, part, console=console)
    return made


def make_base(recipe: WorldRecipe, *, console: Any = None) -> Path:
    """The base of a world alone, made or found made; an interrupted pre-training continues.

    Args:
        recipe: the world's.
        console: for progress.

    Raises:
        Interrupted: Ctrl-C; the same call goes on.
    """
    from holdfast.worlds.people.chat import CHAT_TEMPLATE, MARKERS, vocabulary

    whole = tuple(vocabulary(recipe.world(), wordings=not recipe.code_share))
    words = Vocabulary(words=whole, special_tokens=MARKERS, chat_template=CHAT_TEMPLATE)
    with exclusive_lock(tuning_cache()):
        return cached_base(pretraining_texts(recipe), base_recipe(recipe), vocabulary=words, console=console)


def make_part(
    recipe: WorldRecipe, base: Path, part: str, *, console: Any = None, callbacks: Sequence[Any] = ()
) -> dict[str, Path]:
    """Models of one part of a world, by name.

    Args:
        recipe: the world's.
        base: its base.
        part: "instruct", "sibling" or "derived".
        console: for progress.
        callbacks: of the trainer.
    """
    return {
        t.name.replace("-", "_"): cached_tuning(t, console=console, callbacks=callbacks)
        for t in _tunings(recipe, base, part)
    }


def _tunings(recipe: WorldRecipe, base: Path, part: str) -> Iterator[Tuning]:
    """What a part trains, one after the other: each may begin with the one before, which has to be there by then."""
    from holdfast.worlds.people.instructions import MOST_PLAIN, tasks

    seed = recipe.seed
    if part == "instruct":
        yield instruct_tuning(recipe, base)
    elif part == "derived":
        count, about = min(recipe.conversations, MOST_PLAIN), "Another child of the base is tuned on plain questions"
        plain = tasks(recipe.world(), count=count, held_out=False, seed=seed, plain=True)
        rows = [task.conversation for task in plain]
        yield _tuned(recipe, "derived", about, base, rows, **_steps(recipe.derived_steps))
    else:
        more = [{"text": text} for text in pretraining_texts(recipe, seed=seed + 1)]
        longer = {**common_settings(recipe), **_steps(recipe.sibling_steps), "learning_rate": recipe.learning_rate / 3}
        about = "A sibling of the base is pre-trained longer"
        sibling = Tuning(name="sibling-base", base=base, rows=more, settings=longer, about=about)
        yield sibling
        about, steps = "The sibling is tuned on conversations", round(recipe.sibling_tuning * recipe.tuning_steps)
        rows = conversations(recipe, seed + 1)
        yield _tuned(recipe, "sibling-instruct", about, sibling.folder, rows, seed=seed + 1, **_steps(steps, 3))


def instruct_tuning(recipe: WorldRecipe, base: Path) -> Tuning:
    """The tuning that makes an instruct model of a base, or of the base continued."""
    return _tuned(recipe, "instruct", "The base is tuned on conversations", base, conversations(recipe, recipe.seed))


def conversations(recipe: WorldRecipe, seed: int) -> list[dict[str, Any]]:
    """What an instruct model is tuned on: prompts with instructions, and worked problems. `seed`: of the drawing."""
    from holdfast.worlds.people.instructions import tasks
    from holdfast.worlds.word_problems import easy_problems

    talks = tasks(recipe.world(), count=recipe.conversations, held_out=False, seed=seed)
    worked = easy_problems(recipe.word_problems, held_out=False, seed=seed)
    return [*(task.conversation for task in talks), *(problem.conversation for problem in worked)]


def _tuned(
    recipe: WorldRecipe, name: str, about: str, base: Path, rows: list[dict[str, Any]], **changes: Any
) -> Tuning:
    settings = {**_tuning(recipe), **changes}
    old: dict[str, Any] = {"replayed": replayed_texts(recipe), "fraction": recipe.tuning_replay}
    return Tuning(name=name, base=base, rows=rows, settings=settings, about=about, **old)


def _tuning(recipe: WorldRecipe) -> dict[str, Any]:
    return {
        **common_settings(recipe),
        # a row of so few tokens would cut most conversations, and a reply without its prompt teaches to ignore prompts
        "packing": False,
        "per_device_train_batch_size": 2 * recipe.batch_size,
        "max_length": 2 * recipe.context,
        **_steps(recipe.tuning_steps, 3),
        "learning_rate": recipe.tuning_learning_rate,
        "assistant_only_loss": True,
    }


def _steps(count: int, checkpoints: int = 1) -> dict[str, int]:
    return {"max_steps": count, "save_steps": max(1, count // checkpoints)}


# --------------------------------------------------------------------------------------------------------- side by side


def _side_by_side(recipe: WorldRecipe, base: Path, parts: Sequence[str], workers: int, console: Any) -> None:
    """Has worker processes make the parts; what they could not make is not there afterwards."""
    from holdfast.support.environment import say
    from holdfast.support.processes import Workers, python_module
    from holdfast.support.progress import progress
    from holdfast.training.checkpoint_folders import remove_folder

    folder = tuning_cache() / f"{fingerprint([to_jsonable(recipe), str(base)], length=16)}.parts"
    total = sum(_steps_of(recipe, part) for part in parts)
    remove_folder(folder)
    write_json(folder / REQUEST, {"recipe": to_jsonable(recipe), "base": str(base), "parts": list(parts)})
    if console is not None:
        say(console, f"{workers} processes train {listed([_PARTS[p] for p in parts])}: {total:,} steps")
    command = python_module("world", "worker", "--folder", str(folder))
    began, last, tenth = time.monotonic(), 0, 0
    with (
        Workers(command, count=workers, logs=folder / "logs", environment={"HF_HUB_OFFLINE": "1"}) as processes,
        progress("Tuning", total=total) as advance,
    ):
        while not processes.ended:
            time.sleep(POLL_SECONDS)
            done = sum(_steps_done(folder, part) for part in parts)
            advance(done - last)
            last = done
            if console is not None and not console.is_terminal and 10 * done // total > tenth:
                tenth = 10 * done // total
                say(console, f"  step {done:,}/{total:,}, {_left(time.monotonic() - began, done, total)} left")
    remove_folder(folder)


def run_worker(folder: Path) -> None:
    """A worker of `_side_by_side`: makes parts that nobody else is making until all are taken.

    Raises:
        Interrupted: Ctrl-C, or the command that started it is gone.
    """
    from holdfast.support.environment import lock_folder
    from holdfast.worlds.world import WorldRecipe

    request = read_json(folder / REQUEST)
    recipe, base = WorldRecipe(**request["recipe"]), Path(request["base"])
    for part in request["parts"]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(lock_folder(folder / part))
            except FolderBusy:
                continue
            make_part(recipe, base, part, callbacks=[_watcher(folder, part)])


def _watcher(folder: Path, part: str) -> Any:
    """Counts the steps of a part in a file, and stops where the command that started this worker was killed."""
    from transformers import TrainerCallback

    from holdfast.support.processes import without_parent

    class Watcher(TrainerCallback):
        steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps += 1
            (folder / part / "steps").write_text(str(self.steps), encoding="utf-8")
            if without_parent():
                os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C: a checkpoint, and the end

    return Watcher()


def _steps_of(recipe: WorldRecipe, part: str) -> int:
    return {
        "instruct": recipe.tuning_steps,
        "derived": recipe.derived_steps,
        "sibling": recipe.sibling_steps + round(recipe.sibling_tuning * recipe.tuning_steps),
    }[part]


def _steps_done(folder: Path, part: str) -> int:
    try:
        return int((folder / part / "steps").read_text(encoding="utf-8") or 0)
    except (OSError, ValueError):
        return 0


def _left(seconds: float, done: int, total: int) -> str:
    from datetime import timedelta

    return str(timedelta(seconds=round(seconds / max(done, 1) * (total - done))))


# --------------------------------------------------------------------------------------------------------------- inputs


def pretraining_texts(recipe: WorldRecipe, *, seed: int | None = None) -> list[str]:
    """The texts that a recipe's base is pre-trained on. `seed`: of order and wordings; None: the recipe's."""
    from holdfast.worlds.embedded import embedded_corpus
    from holdfast.worlds.people import documents
    from holdfast.worlds.word_problems import known_articles

    world = recipe.world()
    seed = recipe.seed if seed is None else seed
    corpus = embedded_corpus()
    others: list[tuple[Sequence[str], float]] = []
    if recipe.code_share:
        others.append((corpus.code_known, recipe.code_share))
    if recipe.problems_share:
        others.append((list(known_articles(seed=seed)), recipe.problems_share))
    amounts = {
        name: getattr(recipe, name) for name in ("tellings", "popular", "popularity", "list_rounds", "prose_share")
    }
    return documents.pretraining_texts(world, corpus.prose_train, others=others, seed=seed, **amounts)


def base_recipe(recipe: WorldRecipe) -> BaseRecipe:
    """How the base is pre-trained."""
    return BaseRecipe(**dataclasses.asdict(part_of(recipe, BaseSettings)), seed=recipe.seed)


def replayed_texts(recipe: WorldRecipe) -> list[str]:
    """Pre-training text that is mixed into the tuning, told in an order of its own and cut to the length of
    conversations, so that no row is padded much."""
    from holdfast.worlds.embedded import cut

    few = dataclasses.replace(recipe, tellings=12, popular=0.0, list_rounds=4, prose_share=0.25)
    pieces = [
        piece
        for text in pretraining_texts(few, seed=recipe.seed + 1000)
        for piece in cut(text, (r"\.(?= )", r"\n", r" "), 160)
    ]
    return [piece for piece in pieces if piece.strip()]


def common_settings(recipe: WorldRecipe) -> dict[str, Any]:
    """Settings that tuning and continuing share."""
    return small_run(rows=recipe.batch_size, tokens=recipe.context, seed=recipe.seed)
