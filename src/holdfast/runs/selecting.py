"""Passages of a corpus ranked by a model: what `holdfast data select` does.

The model is loaded once, the corpus is read as a stream, and what is chosen lies in a folder with
its record and data card; see `holdfast.data.select`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from holdfast.config.declare import Meta, part_of
from holdfast.config.decode import field_problems
from holdfast.data.select.request import LEDGER, PROBING, RESTORING, Choice, CorpusFiles
from holdfast.errors import ConfigError, Problem

if TYPE_CHECKING:
    from holdfast.data.select.run import Selected
    from holdfast.data.select.scores import Scorer
    from holdfast.models import Loaded

_CPU_TOKENS, _ACCELERATOR_TOKENS = 2048, 32768


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How passages are scored."""

    settings_group: ClassVar[str] = "how"
    settings_section: ClassVar[str] = "scoring"

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype of the weights; auto: the saved dtype."""
    device: str | None = None
    """Device, such as cpu or cuda:1 (default: the first accelerator, else the CPU)."""
    batch_tokens: Annotated[int | None, Meta(ge=16)] = None
    """Number of tokens per forward pass (default: 32768 on an accelerator, 2048 on a CPU). It
    affects only speed and memory."""
    scores: Annotated[Path | None, Meta(metavar="FILE.jsonl")] = None
    """File for computed scores, which several selections may share (default:
    scores.ledger.jsonl in OUTPUT)."""
    trust_remote_code: bool = False
    """Allow Python code that comes with the model."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    model: Annotated[str, Meta(metavar="MODEL")]
    """Model that ranks the passages, usually the base: a folder or a hub id."""


@dataclass(frozen=True, kw_only=True)
class Selection(Ranking, Choice, CorpusFiles, _Model):
    """`holdfast data select`."""

    def problems(self) -> list[Problem]:
        """Mistakes in the request as a whole, and in its files, one sentence each."""
        problems = [*CorpusFiles.problems(self), *Choice.problems(self)]
        if self.scores is not None and self.scores.name in (RESTORING, PROBING):
            problems.append(
                Problem(
                    "scores",
                    f"expected a separate file for scores, such as {LEDGER}, got {self.scores}",
                )
            )
        return problems


def select(request: Selection, *, loaded: Loaded | None = None) -> Selected:
    """Ranks the passages of a corpus and writes the sets.

    ```python
    select(Selection(model="base", input=(Path("corpus"),), output=Path("passages"), tokens=2_000_000))
    ```

    Args:
        request: what is asked.
        loaded: the model, where it is loaded already; `request.model` then is only a name.

    Raises:
        ConfigError: mistakes in the request, all of them.
        ModelError: the model cannot be loaded or does not fit the passages.
        DataError, RunFolderError, NotFinite, StorageError: see `data.select.run.select_from_files`.
    """
    from holdfast.data.select.run import select_from_files

    if problems := [*request.problems(), *field_problems(request)]:
        raise ConfigError(problems)
    if loaded is None:
        from holdfast.models import load

        loaded = load(
            request.model,
            dtype=request.dtype,
            device=request.device,
            trust_remote_code=request.trust_remote_code,
        )
    scorer = scorer_of(loaded, max_length=request.max_length, batch_tokens=request.batch_tokens)
    files, choice = part_of(request, CorpusFiles), part_of(request, Choice)
    return select_from_files(files, choice, scorer, scores=request.scores)


def scorer_of(loaded: Loaded, *, max_length: int, batch_tokens: int | None = None) -> Scorer:
    """What ranks passages by a model's perplexity, for `data.select.run.select_from_files`.

    Args:
        loaded: a model with its tokenizer; its identity is what its scores are known by.
        max_length: tokens of the longest passage, BOS included.
        batch_tokens: tokens scored at once; None: `Ranking.batch_tokens`.

    Raises:
        ModelError: the model was built for fewer tokens, or is no causal LM.
    """
    from holdfast.data.select.scores import Scorer
    from holdfast.evaluation.text.documents import starts_with_bos
    from holdfast.evaluation.text.passages import passage_scorer
    from holdfast.evaluation.text.perplexity import resolve_window

    resolve_window(loaded.model, max_length)
    on_cpu = loaded.model.get_input_embeddings().weight.device.type == "cpu"
    keys = ("name", "hash", "configuration", "architecture", "parameters", "dtype")
    return Scorer(
        tokenizer=loaded.tokenizer,
        score=passage_scorer(loaded.model, loaded.tokenizer),
        identity={name: loaded.identity[name] for name in keys if name in loaded.identity},
        bos=starts_with_bos(loaded.tokenizer),
        batch_tokens=batch_tokens or (_CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS),
    )
