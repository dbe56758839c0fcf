"""Plain records of an update, and of a study of the instruction residual (Balancing Continuous
Pre-Training): which models were made, how, and what each measured.

An update is a study with one budget; both are a folder:

```
update.json                       ResidualRecord
corpus/                           the new text as it was read, what was held out of it, and how it came about
runs/<name>/                      one ordinary run folder a continued model
models/<name>/                    models that an addition made
evaluations/<name>/               what was measured of each model (`EvaluationFolder`)
study.db                          the storage of the models that are to be made
report.html                       the page
```
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, ClassVar

from holdfast.records.base import BaseRecord
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import EvaluationFolder

RECORD_FILE = "update.json"
BASE, INSTRUCT, DERIVED = "base", "instruct", "derived"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudiedModel:
    """One model: given, continued on new text, or made by adding a residual."""

    name: str
    """Unique, a folder's name, such as "base-100M-residual"."""
    label: str
    """For people: "base + 100M tokens + residual"."""
    start: str
    """"base", "instruct" or "derived": what it was before anything was done to it here."""
    family: str
    """The pair whose base, instruct or child the start is, such as "llama-3"; "" where there is
    only one pair."""
    tokens: int = 0
    """New tokens it was trained on, as counted, those of every epoch; 0: none."""
    budget: int | None = None
    """New tokens that were asked for; None: all of the corpus once."""
    residual: str | None = None
    """The family whose residual was added ("" where there is only one pair); None: none was."""
    scale: float | None = None
    """The factor on that residual."""
    added: float | None = None
    """The relative norm of what was added: of scale x residual over that of the base that it was
    taken from."""
    tuned: bool = False
    """Whether it was tuned on the instruct model's conversations after it was continued (the
    paper's setting S2)."""
    distilled: bool = False
    """Whether it was held to the instruct model on its own answers after it was continued."""
    seed: int = 0
    """Of training; of a small world's models that of the world, which decides people, texts and
    weights."""
    width: int = 0
    """Hidden size of a small world's models; 0: no small world."""
    path: str = ""
    """Its folder, relative to the study's, or what the user gave."""
    hash: str = ""
    """Of its weights."""
    evaluations: str = ""
    """The folder of its evaluations, relative to the study's."""
    flops: float = 0.0
    """Floating-point operations spent here on training it, with every repetition: 0 for a given
    model, those of the continuation for the others, and of a tuning on conversations of the
    user's."""
    seconds: float = 0.0
    """Wall-clock time of making it here, its continuation included."""
    parameters: int = 0
    state: str = "waiting"
    """"waiting", "running", "complete" or "failed"."""
    reason: str | None = None
    """Why it failed."""

    @property
    def repeated(self) -> str:
        """The label without the training seed or the world: the same for models that differ in it
        alone."""
        return without_seed(self.label or self.name)

    @property
    def restored(self) -> str:
        """What brought instruction following back: "residual", "tuning", "distillation" or ""."""
        if self.residual is not None:
            return "residual"
        return "tuning" if self.tuned else "distillation" if self.distilled else ""

    @property
    def place(self) -> tuple[int, int | None]:
        """What it shares with the models that it is compared with: width and small world, (0, None)
        outside of one."""
        return self.width, self.seed if self.width else None

    @property
    def continued(self) -> bool:
        """Whether it was, or is to be, trained on new text; tokens below 0 are not counted yet."""
        return self.tokens != 0 or self.budget is not None

    @property
    def given(self) -> bool:
        """Whether nothing was done to it here."""
        return not self.continued and self.residual is None

    def measured(self, folder: Path) -> EvaluationFolder:
        """What was measured of it; `folder` is the study's."""
        return EvaluationFolder(folder / self.evaluations)


def without_seed(label: str) -> str:
    """A model's label without its training seed or world."""
    return re.sub(r", (seed|world) \d+", "", label)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPair:
    """Two models held against each other, paired sample by sample."""

    before: str
    """Name of a model."""
    after: str
    question: str
    """What it answers, such as "Does the residual bring instruction following back?"."""
    comparisons: list[Comparison]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualRecord(BaseRecord):
    """update.json."""

    file: ClassVar[str] = RECORD_FILE
    kind: str = "update"
    """"update" or "study"."""
    families: list[str] = dataclasses.field(default_factory=list)
    """Names of the pairs; [""] where there is one."""
    result: str = ""
    """Name of the model that an update is about; "" in a study."""
    models: list[StudiedModel] = dataclasses.field(default_factory=list)
    """In the order of the report."""
    pairs: list[ModelPair] = dataclasses.field(default_factory=list)
    corpus: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`{"documents", "tokens", "held_out", "first_date", "last_date", "skipped": {reason: count},
    "windows", "wasted": share of them, ...}`."""
    ancestry: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """The evidence that instruct models are children of their bases; see
    `holdfast.checkpoints.ancestry`."""

    @property
    def epochs(self) -> float:
        """Passes over the new text."""
        return float(self.config.get("epochs") or 1)

    def new_tokens(self, model: StudiedModel) -> int:
        """Tokens of the new text that a model was trained on, each once however often it was
        repeated: those that were asked for, else those that were counted; 0: none, below 0: not
        counted yet."""
        return round(model.tokens / self.epochs) if model.budget is None else model.budget

    def model(self, name: str) -> StudiedModel:
        """A model by name.

        Raises:
            KeyError: none of that name.
        """
        return {model.name: model for model in self.models}[name]


read_update = ResidualRecord.read
