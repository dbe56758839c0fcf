"""A `checkpoint-N` folder is whole or absent: it is written aside and renamed when everything in it is on the disk.

Trainer writes weights, optimiser and state straight into the final folder, so a run that is killed meanwhile leaves
half a checkpoint with the name of a whole one. Here the folder is `.saving` until all processes have written, and old
checkpoints go only when the new one is there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.training.checkpoint_folders import checkpoints_in, remove_folder, sync_folder

if TYPE_CHECKING:
    from transformers import Trainer as _Host
else:
    _Host = object


class WholeCheckpoints(_Host):
    """Mixin over `transformers.Trainer`: saves every checkpoint aside, renames it, and removes those beyond
    `save_total_limit`."""

    def _save_retention_state(self, folder: Path) -> None:
        """What a checkpoint holds beside the trainer's own files; called on every process, before the rename."""
        raise NotImplementedError

    def _get_output_dir(self, trial: Any) -> str:
        return getattr(self, "_staging", None) or super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        name = f"checkpoint-{self.state.global_step}"
        if self.args.push_to_hub and str(getattr(self.args.hub_strategy, "value", self.args.hub_strategy)).endswith(
            "checkpoint"
        ):
            # The hub upload of checkpoints reads the folder in the background, so it cannot be moved under it.
            super()._save_checkpoint(model, trial)
            self._save_retention_state(Path(self.args.output_dir) / name)
            return
        final = Path(super()._get_output_dir(trial)) / name
        staging = final.parent / ".saving"
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        self._staging: str | None = str(staging)
        try:
            if self.is_world_process_zero():
                remove_folder(staging)
            self.accelerator.wait_for_everyone()  # no rank may write what rank 0 is still clearing
            super()._save_checkpoint(model, trial)
            self._save_retention_state(staging / name)
            best = self.state.best_model_checkpoint
            if best and Path(best).parent == staging:
                self.state.best_model_checkpoint = str(final)
                if self.is_world_process_zero():
                    self.state.save_to_json(str(staging / name / "trainer_state.json"))
        except BaseException:
            if self.is_world_process_zero():
                remove_folder(staging)  # half a checkpoint is worth nothing, and its space may be what is missing
            raise
        finally:
            self._staging = None
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            sync_folder(staging / name)
            remove_folder(final)
            os.replace(staging / name, final)
            remove_folder(staging)
            self._rotate(final.parent)
        self.accelerator.wait_for_everyone()

    def _rotate(self, folder: Path) -> None:
        limit = self.args.save_total_limit
        if not limit:
            return
        best = Path(self.state.best_model_checkpoint).name if self.state.best_model_checkpoint else None
        found = sorted(checkpoints_in(folder), key=lambda path: int(path.name.rsplit("-", 1)[1]))
        removable = [path for path in found[:-1] if path.name != best]
        for path in removable[: max(0, len(found) - limit)]:
            remove_folder(path)
