"""The keys of a stages study, declared once.

```yaml
base: MODEL
tuned: [runs/alpaca/checkpoint-100, runs/alpaca/checkpoint-200]     # in order; or train them here:
train: {dataset_name: alpaca.jsonl, num_train_epochs: 10, learning_rate: 2.0e-5}
along: {steps: [1, 2, 5, 10, 20]}                                  # mass and entropy change within the first steps
with_retention: {label_annealing: {weight: 1}}                     # the same training once more, held on to
corpus: [web/*.jsonl.gz]                                           # what restoring text is chosen from; or generated
suite: forgetting_stages                                           # or entries of your own under keep
restore: {learning_rate: 3.0e-5}                                   # keys of 'holdfast train'
doses: [1, 4]                                                      # does more restoring bring more back?
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from holdfast.config.declare import Meta, Seed
from holdfast.config.yaml_text import from_yaml
from holdfast.errors import Problem
from holdfast.records.margins import parse_margins
from holdfast.studies.engine.keys import BaseStudySettings, ToySettings
from holdfast.support.paths import real

OWN = ("model_name_or_path", "seed", "data_seed", "output_dir", "evaluation", "retention")
"""Keys of a training configuration that the study sets itself."""
OF_PARTS = {"train": (*OWN, "save_strategy"), "restore": (*OWN, "dataset_name")}
"""The same of the fine-tuning and of restoring."""
GENERATED = "generated"
"""In place of a corpus: text that the base writes itself."""
PROBING_PASSAGES, GENERATED_PROBING = 10_000, 500
"""Of a corpus, and of text that has to be written first."""
RESTORE: dict[str, Any] = {
    "learning_rate": 3.0e-5,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 32,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.03,
    "max_length": 512,
    "packing": False,
}
"""Of restoring, where `restore` says nothing else: the paper's rate and batch of 256 passages for an
epoch (section 3.3). Schedule and length of a passage are not told there."""


def _mapping() -> dict[str, Any]:
    return {"type": "object"}


def read_mapping(value: Any) -> dict[str, Any]:
    """A retention method with its parameters, or its name alone.

    Raises:
        ValueError: something else.
    """
    if isinstance(value, str) and value:
        return {value: {}}
    if isinstance(value, Mapping) and len(value) == 1:
        return {str(k): v for k, v in value.items()}
    raise ValueError


def read_train(value: Any) -> dict[str, Any]:
    """Keys of `holdfast train`, or a data file alone.

    Raises:
        ValueError: something else.
    """
    if isinstance(value, str) and value:
        return {"dataset_name": value}
    if isinstance(value, Mapping):
        return {str(k): v for k, v in value.items()}
    raise ValueError


def entry_word(word: str) -> Any:
    """An entry at the command line: a mapping as in the YAML, or a name.

    Raises:
        ValueError: braces that hold no mapping.
    """
    if not word.lstrip().startswith("{"):
        return word
    entry = from_yaml(word)
    if not isinstance(entry, dict):
        raise ValueError(
            "expected a mapping, as '{multiple_choice: questions.jsonl, name: facts}'."
        )
    return entry


def read_margin(value: Any) -> tuple[str, ...]:
    """Margins as `holdfast compare --margin` takes them.

    Raises:
        ValueError: something else.
    """
    words = tuple(map(str, value if isinstance(value, (list, tuple)) else [value]))
    parse_margins(words)
    return words


@dataclass(frozen=True, kw_only=True)
class StagesSettings(ToySettings, BaseStudySettings):
    """Keys of a stages study."""

    name: str = "diagnosis"
    base: Annotated[str, Meta(metavar="MODEL")] = ""
    """The model that was fine-tuned: a folder, a name or a hub id."""
    tuned: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="CHECKPOINT")] = ()
    """Checkpoints of the fine-tuned model, the earliest first; or `train` makes them."""
    train: Annotated[
        dict[str, Any],
        Meta(
            parse=read_train,
            metavar="FILE|'{...}'",
            expected="a data file, or keys of 'holdfast train'",
            json_schema=lambda: {"anyOf": [{"type": "string"}, {"type": "object"}]},
        ),
    ] = field(default_factory=dict)
    """Fine-tuning: a data file, or keys of 'holdfast train' (data, learning rate, ...). A
    checkpoint is saved after each epoch."""
    along: Annotated[dict[str, Any], Meta(json_schema=_mapping, section="fine_tuning")] = field(
        default_factory=dict
    )
    """When to measure during fine-tuning, as in `evaluation.along` of 'holdfast train': steps,
    every, shares, entries. Mass (the options' total probability) and entropy at the answer position
    change within the first steps, so measure early."""
    with_retention: Annotated[
        dict[str, Any] | None,
        Meta(
            parse=read_mapping,
            metavar="METHOD",
            former=("remedy",),
            expected="a retention method, as label_annealing or {label_annealing: {weight: 1}}",
            json_schema=lambda: {
                "anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 1}]
            },
        ),
    ] = None
    """Fine-tune a second time with this retention method, and diagnose the result, too (needs
    `train`)."""
    corpus: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="FILE")] = ()
    """Text like the base's pre-training data: files and folders, from which the text to restore on
    is selected (`holdfast data select`). Or generated: the base writes the text, which may teach
    forgotten answers again."""
    tokens: Annotated[int | None, Meta(ge=1, section="restoring_text")] = None
    """Number of tokens to restore on. Default: as many as one epoch of the fine-tuning data (needs
    `train`), as in the paper. With more text, the model might learn forgotten
    content anew."""
    doses: Annotated[tuple[int, ...], Meta(ge=1, section="restoring_text")] = (1,)
    """Amounts of text that every checkpoint and the base are restored on: multiples of `tokens`,
    ascending from 1. If a larger dose restores nothing more, the loss that remains is actual
    forgetting. Compute grows with the dose."""
    probing_passages: Annotated[int | None, Meta(ge=8, section="restoring_text")] = None
    """Number of random passages of the corpus for measuring perplexity (default: 10000, or 500 for
    generated text)."""
    select: Annotated[dict[str, Any], Meta(json_schema=_mapping, section="restoring_text")] = field(
        default_factory=dict
    )
    """Further options of 'holdfast data select': max_length, minimum_tokens, questions, overlap."""
    restore: Annotated[dict[str, Any], Meta(json_schema=_mapping, section="restoring_text")] = (
        field(default_factory=dict)
    )
    """Keys of 'holdfast train' for restoring. Defaults, as in the paper: learning_rate 3e-5, batch
    256, one epoch."""
    suite: Annotated[str | None, Meta(metavar="NAME")] = None
    """Suite with the entries to judge: a shipped suite, such as forgetting_stages (MMLU and ARC),
    or a file."""
    keep: Annotated[list[Any], Meta(repeatable=True, parse_word=entry_word, metavar="ENTRY")] = (
        field(default_factory=list)
    )
    """Entries to judge: multiple choice and tasks. Entries of perplexity, answers and memorisation
    are plotted beside them."""
    judge: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="NAME")] = ()
    """Names of entries or averages to judge; default: all entries with right and wrong answers. An
    average of two small benchmarks, such as the parts of ARC, may give a verdict when neither part
    does."""
    evaluation: Annotated[dict[str, Any], Meta(json_schema=_mapping, section="judging")] = field(
        default_factory=dict
    )
    """Evaluation settings of all entries, such as batch_size."""
    margin: Annotated[
        tuple[str, ...],
        Meta(parse=read_margin, metavar="MARGIN", expected="losses as 2pt or '0.02 nats/token'"),
    ] = ("1pt",)
    """Margins, such as '2pt': if a score falls by at most this, the fall does not matter."""
    tolerance: Annotated[float, Meta(ge=0, section="judging")] = 0.05
    """The text pattern counts as restored if the model's loss on the probing text is at most this
    much (nats per token) above that of the base, or of the restored base."""
    control_tolerance: Annotated[
        tuple[str, ...],
        Meta(
            parse=read_margin,
            metavar="MARGIN",
            expected="losses as 2pt or '0.02 nats/token'",
            section="judging",
        ),
    ] = ("2pt",)
    """Largest fall of the base's own score that restoring may cause. There is a verdict only if the
    fall is shown to be smaller."""
    even_at_chance: Annotated[bool, Meta(section="judging")] = False
    """Continue even if the base is not shown to be better than chance on any task. Then only gains
    can be found."""
    curve: Annotated[int, Meta(ge=0, section="restoring_text")] = 8
    """How many times the probing text is measured during restoring; 0: never."""
    seed: Seed = 0
    """Seed of fine-tuning, restoring and random draws. The seed also selects the base and data
    of a toy setting."""
    keep_weights: Annotated[Literal["all", "none"], Meta(section="study")] = "none"
    """Whether the study's weights stay on disk after its end."""

    @property
    def generates(self) -> bool:
        """Whether the base writes the text to restore on."""
        return self.corpus == (GENERATED,)

    def problems(self) -> list[Problem | str]:
        """What is missing, and what contradicts itself."""
        problems = [*super().problems(), *self._model_problems(), *self._corpus_problems()]
        if self.tuned and self.tokens is None:
            text = (
                "is missing: the number of tokens to restore on. The paper uses as many as one "
                "epoch of the fine-tuning data."
            )
            problems.append(Problem("tokens", text))
        if self.doses[:1] != (1,) or sorted(set(self.doses)) != list(self.doses):
            text = f"expected multiples of the budget, ascending from 1, got {list(self.doses)}."
            problems.append(Problem("doses", text))
        if not self.suite and not self.keep:
            text = "is missing: entries to judge, such as `suite: forgetting_stages` or your own."
            problems.append(Problem("keep", text))
        for section, train in (("train", self.train), ("restore", self.restore)):
            for key in train:
                if key in OF_PARTS[section]:
                    problems.append(Problem((section, key), "is set by the study; leave it out."))
        if self.train:
            problems += self._train_problems()
            return problems
        if self.with_retention is not None:
            text = "fine-tunes a second time, so it needs `train` with the data and settings."
            problems.append(Problem("with_retention", text))
        if self.along:
            problems.append(
                Problem("along", "measures during fine-tuning, so it needs `train` with its data.")
            )
        return problems

    def _corpus_problems(self) -> list[Problem]:
        """What is wrong with the text to choose from."""
        problems = []
        if not self.corpus:
            text = (
                "is missing: text like the base's pre-training data. Give files, or generated: "
                "then the base writes the text."
            )
            problems.append(Problem("corpus", text))
        if self.generates and self.doses != (1,):
            text = (
                f"expected [1] with generated text, got {list(self.doses)}: a larger dose would "
                "train on text that a smaller dose uses for probing."
            )
            problems.append(Problem("doses", text))
        if GENERATED in self.corpus and not self.generates:
            text = (
                f"expected either {GENERATED} or files, got both. If {GENERATED} is the name of "
                f"your file, write ./{GENERATED}."
            )
            problems.append(Problem("corpus", text))
        return problems

    def _model_problems(self) -> list[Problem]:
        """What is wrong with the base and its checkpoints."""
        problems = []
        if not self.base:
            text = "is missing. Give the model that was fine-tuned: a folder, a name or a hub id."
            problems.append(Problem("base", text))
        if bool(self.tuned) == bool(self.train):
            text = (
                "expected the checkpoints of a fine-tuning, or `train` with its data and epochs, "
                "got "
            )
            problems.append(Problem("tuned", text + ("both." if self.tuned else "neither.")))
        checkpoints = [real(checkpoint) for checkpoint in self.tuned]
        if len(set(checkpoints)) < len(checkpoints):
            problems.append(Problem("tuned", "expected each checkpoint once."))
        if self.base and real(self.base) in checkpoints:
            text = (
                "expected checkpoints that were fine-tuned from the base, got the base itself: "
                f"{self.base}."
            )
            problems.append(Problem("tuned", text))
        return problems

    def _train_problems(self) -> list[Problem]:
        problems = []
        if not isinstance(self.train.get("dataset_name"), str):
            problems.append(
                Problem(("train", "dataset_name"), "is missing: the data of the fine-tuning.")
            )
        epochs = self.train.get("num_train_epochs", 10)
        is_number = isinstance(epochs, (int, float)) and not isinstance(epochs, bool)
        if not is_number or epochs != int(epochs) or epochs < 1:
            text = f"expected a whole number of epochs, got {epochs!r}."
            problems.append(Problem(("train", "num_train_epochs"), text))
        if "max_steps" in self.train:
            text = "a checkpoint is saved after each epoch. Set num_train_epochs instead."
            problems.append(Problem(("train", "max_steps"), text))
        return problems
