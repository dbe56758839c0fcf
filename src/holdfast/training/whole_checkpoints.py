"""A `checkpoint-N` folder is whole or passed over.

Trainer writes weights, optimiser and state straight into the final folder, so a run that is killed
meanwhile leaves half a checkpoint with the name of a whole one. Here the folder is `.saving` until
all processes have written. Then each process hashes the files that it wrote, which the page cache
still holds, and puts them on the disk; the first one writes the manifest of all of them, last, and
renames the folder. Old checkpoints go only when the new one is there.

A run goes on from the newest checkpoint whose files are all there and as they were written. One
that is not is passed over, and the run says which of its files is to blame: transformers itself
would go on without the optimiser's or the random state, to other weights.

Models whose files have kept the names of earlier versions (vision-language models) are loaded by
those names: Trainer would pass over all of their tensors with a warning, and go on from the start
model.

Checkpoints without a manifest are from before there was one. They have to show what they can: that
every part is there and can be read.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list, gather_object
from torch import nn

from holdfast.checkpoints import manifest
from holdfast.checkpoints.live_tensors import checkpoint_names
from holdfast.checkpoints.sources import listing
from holdfast.checkpoints.writer import fsync_path
from holdfast.errors import DataError, RunFolderError, StorageError
from holdfast.training.checkpoint_folders import SAVING, checkpoints_in, refuse_files, remove_folder
from holdfast.training.checkpoint_parts import Parts, best_of, lacking, unreadable

if TYPE_CHECKING:
    from transformers import Trainer as _Host
else:
    _Host = object

logger = logging.getLogger(__name__)

_RANK = re.compile(r"(?:rng_state_|__|rank_?)(\d+)")
"""The process that wrote a file, in the names that transformers, torch, accelerate and DeepSpeed
give."""
_LOADED = (".bin", ".distcp", ".json", ".pt", ".pth", ".safetensors")
"""Endings of files that continuing a run may load."""


class WholeCheckpoints(_Host):
    """Mixin over `transformers.Trainer`: saves every checkpoint aside, with a manifest, renames it,
    removes those beyond `save_total_limit`, and finds the one to go on from."""

    def _save_retention_state(self, folder: Path) -> None:
        """What a checkpoint holds beside the trainer's own files; called on every process, before
        the rename."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------- writing one

    def _get_output_dir(self, trial: Any) -> str:
        return getattr(self, "_staging", None) or super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        name = f"checkpoint-{self.state.global_step}"
        if self.args.push_to_hub and str(
            getattr(self.args.hub_strategy, "value", self.args.hub_strategy)
        ).endswith("checkpoint"):
            # The hub upload of checkpoints reads the folder in the background, so it cannot be
            # moved under it.
            super()._save_checkpoint(model, trial)
            self._complete(Path(self.args.output_dir) / name)
            return
        final = Path(super()._get_output_dir(trial)) / name
        staging = final.parent / SAVING
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        self._staging: str | None = str(staging)
        try:
            if self.is_world_process_zero():
                remove_folder(staging)
            self.accelerator.wait_for_everyone()  # no rank may write what rank 0 is still clearing
            super()._save_checkpoint(model, trial)
            best = self.state.best_model_checkpoint
            if best and Path(best).parent == staging:
                self.state.best_model_checkpoint = str(final)
                if self.is_world_process_zero():
                    self.state.save_to_json(str(staging / name / "trainer_state.json"))
            self._complete(staging / name)
        except BaseException:
            if self.is_world_process_zero():
                # half a checkpoint is worth nothing, and its space may be what is missing
                remove_folder(staging)
            raise
        finally:
            self._staging = None
            self.args.save_total_limit = limit
        if self.is_world_process_zero():
            remove_folder(final)
            os.replace(staging / name, final)
            fsync_path(final.parent)
            remove_folder(staging)
            self._rotate(final)
        self.accelerator.wait_for_everyone()

    def _complete(self, folder: Path) -> None:
        """The methods' state, and the manifest of everything that all processes wrote."""
        self._save_retention_state(folder)
        self.accelerator.wait_for_everyone()
        mine = manifest.measured(
            folder, filter(self._is_mine, manifest.files_in(folder)), sync=True
        )
        everyones = gather_object([mine])
        if self.is_world_process_zero():
            files: dict[str, Any] = {}
            for written in everyones:
                files |= written
            manifest.write_manifest(folder, files)
            fsync_path(folder)

    def _is_mine(self, name: str) -> bool:
        """Whether this process answers for a file: the one that its name says, the first for all
        others."""
        match = _RANK.search(name)
        rank = int(match[1]) if match else 0
        return (rank if rank < self.args.world_size else 0) == self.args.process_index

    def _rotate(self, newest: Path) -> None:
        """Removes what is beyond `save_total_limit`, first what lies ahead: checkpoints that this
        run passed over."""
        limit = self.args.save_total_limit
        if not limit:
            return
        best = (
            Path(self.state.best_model_checkpoint).name
            if self.state.best_model_checkpoint
            else None
        )
        checkpoints = checkpoints_in(newest.parent)
        ahead = checkpoints[checkpoints.index(newest) + 1 :]
        removable = [
            path for path in [*ahead, *checkpoints] if path.name not in (best, newest.name)
        ]
        for path in dict.fromkeys(removable[: max(0, len(checkpoints) - limit)]):
            remove_folder(path)

    # ------------------------------------------------------------------------ the one to go on from

    def whole_checkpoint(
        self, folder: Path, say: Callable[[str], None] = logger.warning
    ) -> Path | None:
        """The newest checkpoint of a run that is whole, None where there is none: the run begins
        anew. To be called by all processes.

        Args:
            folder: the run's.
            say: gets a line on those that were passed over and why, and one on a checkpoint without
                a manifest.

        Raises:
            RunFolderError: a file has a checkpoint's name.
        """
        refuse_files(folder)
        names: list[Any] = [[path.name for path in checkpoints_in(folder)]]
        broadcast_object_list(names)
        passed, newest = [], None
        for name in reversed(names[0]):
            problems = self._problems(folder / name, strict=True)
            if not problems:
                newest = folder / name
                break
            passed.append(f"{name} ({listing(problems, 3)})")
        if passed:
            after = f"continues from {newest.name}" if newest else "starts over"
            say(f"Skipped: {', '.join(passed)}. Training {after}.")
        if newest is not None and not (newest / manifest.FILE).exists():
            say(
                f"{newest.name} has no {manifest.FILE} because an earlier version wrote it. Its "
                "files can be read, but not checked for changes."
            )
        self._checked = newest
        return newest

    def _checkpoint_to_resume(self, asked: Any) -> str | None:
        """The folder that `train(resume_from_checkpoint=...)` means, which is whole; None: the run
        begins anew.

        Raises:
            RunFolderError: there is none, it is not whole, or a file has a checkpoint's name.
        """
        output = Path(self.args.output_dir)
        refuse_files(output)
        if asked is None or asked is False:
            return None
        if asked is True:
            newest = self.whole_checkpoint(output)
            if newest is None:
                raise RunFolderError(
                    f"Expected a complete checkpoint in {output} to continue from, found none."
                )
            return str(newest)
        path = Path(asked)
        if path != getattr(self, "_checked", None) and (
            problems := self._problems(path, strict=False)
        ):
            raise RunFolderError(
                f"Expected a complete checkpoint in {path} to continue from, but "
                f"{listing(problems)}. Choose another one, or start over."
            )
        return str(path)

    def _problems(self, path: Path, *, strict: bool) -> list[str]:
        """What keeps this run from going on from a checkpoint, half a sentence each, found by all
        processes together: each reads the files that it would have written.

        Args:
            path: its folder.
            strict: see `checkpoint_parts.lacking`.
        """
        first = self.is_world_process_zero()
        mine = _changed(path, read=self._is_mine, first=first)
        if not mine and first:
            mine = lacking(path, self._parts(), strict=strict) or self._best_changed(path)
        return list(dict.fromkeys(itertools.chain(*gather_object([mine]))))

    def _best_changed(self, path: Path) -> list[str]:
        """The run will end with the best checkpoint's weights: without them it would end with
        others."""
        best = best_of(path) if self.args.load_best_model_at_end else None
        if best is None or best.name == path.name:
            return []
        return [f"its best checkpoint, {best.name}: {problem}" for problem in _changed(best)]

    def _parts(self) -> Parts:
        return Parts(
            methods=bool(getattr(self, "retain", ())),
            sharded="deepspeed"
            if self.is_deepspeed_enabled
            else "fsdp"
            if self.is_fsdp_enabled
            else "",
            processes=self.args.world_size,
            scaler=getattr(self.accelerator, "scaler", None) is not None,
        )

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        state = super()._init_training_state(*args, **kwargs)
        resumed = getattr(self, "_resumed", None)
        best = best_of(Path(resumed)) if resumed is not None else None
        if (
            best is not None and best.is_dir()
        ):  # where the run's folder was moved, the state names the old place
            self.state.best_model_checkpoint = str(best)
        return state

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing = {*load_result.missing_keys}
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        loaded = {id(tensor) for name, tensor in parameters.items() if name not in missing}
        # a tied one has another name too
        lost = sorted(
            name for name in missing & parameters.keys() if id(parameters[name]) not in loaded
        )
        if lost:  # Trainer warns, and trains on with the weights that happen to be there
            raise StorageError(
                f"Expected a checkpoint with all tensors of the model, but {listing(lost, 3)} "
                f"cannot be found in it ({len(lost)} in all). Remove that checkpoint and run the "
                "same command to continue from an earlier one."
            )
        super()._issue_warnings_after_load(load_result)

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))
        if problems := _changed(best):
            raise StorageError(
                f"The best checkpoint, {best}, was expected to be unchanged, but "
                f"{listing(problems)}. Run the same command to continue from an earlier complete "
                "checkpoint."
            )
        super()._load_best_model()


def take_stored_names(lm: nn.Module) -> None:
    """Has `lm.load_state_dict` find tensors by the names that `save_pretrained` gave them, too (see
    `checkpoint_names`)."""

    def rename(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        tensors = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        live: dict[str, str] = {}
        for choice in (1, 0):  # a name of its own goes before that of the language model alone
            for live_name, _ in tensors:
                stored = checkpoint_names(live_name)
                if len(stored) > choice:
                    live[stored[choice]] = prefix + live_name
        for name in [name for name in state if name.startswith(prefix)]:
            now = live.get(checkpoint_names(name.removeprefix(prefix))[0])
            if now is not None and now not in state:
                state[now] = state.pop(name)

    lm.register_load_state_dict_pre_hook(rename)


def _changed(
    path: Path, *, read: Callable[[str], bool] = lambda name: True, first: bool = True
) -> list[str]:
    """What is not as a checkpoint's manifest says, half a sentence each; without a manifest, what
    cannot be read.

    Args:
        path: its folder.
        read: which files to read here, where other processes read the rest.
        first: whether this process answers for a checkpoint without a manifest.
    """
    if not path.is_dir():
        return ["there is no such folder"]
    try:
        files = manifest.read_manifest(path)
    except DataError:
        return [f"{manifest.FILE} cannot be read"]
    if files is None:
        return unreadable(path) if first else []
    if damaged := manifest.damage(path, files, read=read):
        return damaged
    added = []
    for name in manifest.files_in(path):
        is_hidden = Path(name).name.startswith(".")
        if name not in files and name.endswith(_LOADED) and not is_hidden:
            added.append(f"{name} was added later")
    return added
