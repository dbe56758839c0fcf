"""What the output folder of `holdfast evaluate` holds: its models, and their comparisons with the
first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from holdfast.errors import RunFolderError
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.compare.joint_scores import Key
from holdfast.evaluation.compare.samples import ComparisonOptions
from holdfast.evaluation.session import PAGE, read_record
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder


class Output:
    """One output folder; each pair of models is compared once, so that page and terminal show the
    same figures.

    Args:
        path: of the folder.

    Raises:
        DataError: it has no record, or one that cannot be read.
        RunFolderError: nothing in it is finished yet.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.record = path, read_record(path)
        self.page = path / PAGE
        self.folders: dict[str, EvaluationFolder] = {}
        for model in self.record.models:
            self.folders[model["label"]] = EvaluationFolder(path / model["label"])
        self.labels = [label for label, folder in self.folders.items() if folder.files()]
        """Models of which something was measured."""
        self._compared: dict[tuple[str, str], list[Comparison]] = {}
        if not self.labels:
            raise RunFolderError(
                f"{path} has no finished evaluation yet (status {self.record.status}). Run the "
                "same 'holdfast evaluate' command to continue."
            )

    def evaluations(
        self, labels: Sequence[str], keys: Sequence[Key] | None = None
    ) -> dict[str, list[Evaluation]]:
        """What was measured of each model, by label; `keys` are suite and name of the entries, None
        takes all."""
        evaluations = {}
        for label in labels:
            folder = self.folders[label]
            if keys is None:
                evaluations[label] = folder.all()
                continue
            entries = [folder.find(*key) for key in keys]
            evaluations[label] = [entry for entry in entries if entry is not None]
        return evaluations

    def comparisons(
        self, labels: Sequence[str], keys: Collection[Key] | None = None
    ) -> dict[str, list[Comparison]]:
        """Every other model against the first of `labels`, by label; `keys` as of `evaluations`."""
        plan = self.record.plan
        options = ComparisonOptions(
            confidence=plan.get("confidence", 0.95), seed=plan.get("seed", 0)
        )
        first, *others = labels
        comparisons = {}
        for label in others:
            if (first, label) not in self._compared:
                compared, _ = compare_folders(self.folders[first], self.folders[label], options)
                self._compared[first, label] = compared
            known = self._compared[first, label]
            comparisons[label] = [c for c in known if keys is None or (c.suite, c.name) in keys]
        return comparisons
