"""A merge over an earlier output, and a look at whether anything changed that must not."""

from __future__ import annotations

from pathlib import Path

from checkpoint_folders import contents, llama_shapes, random_model, write_folder
from holdfast.checkpoints.build import Prepared
from holdfast.checkpoints.merge import merge, prepare_merge


class Case:
    """Two parents, an earlier output of another request, and what all of it held before."""

    def __init__(self, folder: Path, *, shards: int = 3, output: Path | None = None, width: int = 12) -> None:
        self.folder, self.output = folder, output or folder / "out"
        shapes = llama_shapes(layers=6, width=width)
        base = random_model(0, shapes=shapes)
        models = [base, random_model(1, shapes=shapes, near=base)]
        self.parents = [
            write_folder(
                folder / n,
                m,
                shards=shards,
                tokens=[f"t{i}" for i in range(40)],
                files={"generation_config.json": "{}"},
            )
            for n, m in zip(("base", "tuned"), models, strict=True)
        ]
        merge(self.parents, self.output, weights=[1.0, 9.0], sync=False)
        self.before = self.now()

    def prepared(self) -> Prepared:
        return prepare_merge("wise_ft", self.parents[1:], base=self.parents[0], alpha=0.25)

    def now(self) -> dict[str, dict[str, str]]:
        return {str(f): contents(f) for f in [*self.parents, self.output]}

    def check(self, *, changed: Path | None = None) -> None:
        """Nothing has changed and nothing is left over."""
        now = self.now()
        for folder, held in self.before.items():
            assert now[folder] == held or Path(folder) == changed, folder
        assert not [p.name for p in self.output.parent.iterdir() if p.name.startswith(".")]
