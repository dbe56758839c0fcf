"""Self-replay: the start model's own text is replayed, so that nothing old is needed.

    loss = mean over new and generated tokens of CE,      generated ~ p_start( . | prompt)

What a model has learnt is in what it says. Samples of the start model, of its beginning-of-text
token alone or after prompts, stand in for the data that nobody has; they are mixed in as `replay`
mixes old data, `fraction` of the tokens. Trained on with cross-entropy they pull the model back to
the start's distribution there: in expectation over samples at temperature 1, CE on them is KL(start
|| tuned) plus the start's entropy, which is constant. With `ce: false` they carry label annealing's
KL alone, over the whole vocabulary at each token and so with less noise (2605.26097, its KL
variant).

| `prompts` | what is sampled | trained on |
|---|---|---|
| start | from the beginning-of-text token, at temperature 1, nothing left out (2605.26097) | all tokens |
| target | the start's own answers to the prompts of the training data | the answer |
| a file | its answers to prompts of the user's own | the answer |

Departures from 2605.26097: a sample ends where the model ends it (there it goes on to 512 tokens),
and the samples are mixed at random places (there 32 of them stand in each step beside 128 new
rows).

Cost: `fraction / (1 - fraction)` more tokens, and once for a start model, whatever runs follow, the
samples: about as many tokens as are replayed, decoded in large batches. They are kept
(`retention.self_samples`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta, Seed
from holdfast.errors import ConfigError, DataError, Problem
from holdfast.retention.paths import data_problems
from holdfast.retention.protocol import INITIAL_MODEL, RetentionMethod
from holdfast.retention.services import DataServices, Draws, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Dataset

    from holdfast.retention.self_samples import Drawn, Filters

START, TARGET = "start", "target"
LEAST_ROOM = 8
"""Tokens that a prompt has to leave for an answer."""


@dataclass(frozen=True, kw_only=True)
class SelfReplay(RetentionMethod):
    """Mixes samples of the initial model into the new data. This method works on the data.

    References: 2605.26097, experiments/instruct/ptx of its code (samples from the beginning-of-text
    token, CE or KL on them); SSR 2403.01244 (samples after prompts, filtered).
    """

    name: ClassVar[str] = "self_replay"
    title: ClassVar[str] = "self-replay"
    strength: ClassVar[tuple[str, ...]] = ("fraction",)
    place: ClassVar[str] = "data"
    summary: ClassVar[str] = "mixes text written by the initial model into the new data"
    source: ClassVar[str] = (
        "2605.26097: samples that the initial model writes after its beginning-of-text token; "
        "SSR: 2403.01244"
    )
    shares_mixture: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({INITIAL_MODEL})
    row_source: ClassVar[str] = "generated"

    prompts: str = START
    """Prompts given to the initial model: start (the beginning-of-text token alone), target (the
    prompts of the training data), or a file, folder or hub id with prompts."""
    fraction: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Share of generated text in the mixture; 0 is direct fine-tuning."""
    unit: Literal["tokens", "examples"] = "tokens"
    """Unit of the share."""
    ce: bool = True
    """Train on generated tokens with cross-entropy. With false, only label annealing's KL acts on
    them."""
    samples: Annotated[int | None, Meta(ge=1)] = None
    """Maximum number of samples. If the share needs more, samples are repeated. Default: as many as
    the share needs."""
    max_new_tokens: Annotated[int, Meta(ge=1)] = 512
    """Maximum number of tokens of a sample."""
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    """Sampling temperature; 0: greedy decoding, one answer per prompt."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling (top-p): share of the probability mass to sample from; 1: all of it."""
    least_tokens: Annotated[int, Meta(ge=1)] = 1
    """Minimum number of tokens of a sample. Shorter samples are left out."""
    max_repetition: Annotated[float | None, Meta(ge=0, le=1)] = None
    """Largest share of repeated 4-grams in a sample. Samples with more are left out. Default: 0.5
    with prompts, no limit with start."""
    max_dropped: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Largest allowed share of unusable samples: empty, repetitive or shorter than `least_tokens`.
    A larger share ends the run with an error."""
    seed: Seed = 0
    """Random seed of the samples. Runs with different training seeds share the samples."""
    batch_size: Annotated[int | None, Meta(ge=1)] = None
    """Batch size of sampling; default: 32 on a CPU, 256 elsewhere."""
    cache_dir: Annotated[str | None, Meta(decides=False)] = None
    """Folder of the samples, shared between runs; default: self_replay in $HOLDFAST_CACHE or the
    user's cache."""

    @property
    def off(self) -> bool:
        return self.fraction == 0

    def replayed(self) -> float:
        return self.fraction

    def problems(self) -> list[Problem]:
        problems = [] if self._given else data_problems("prompts", self.prompts)
        if not self.prompts:
            problems.append(
                Problem("prompts", "expected start, target, or a file with prompts, got nothing")
            )
        if self.temperature == 0 and self.prompts == START:
            problems.append(
                Problem(
                    "temperature",
                    "expected more than 0 with prompts: start, because with 0 all samples would be "
                    "the same text",
                )
            )
        if self.temperature == 0 and self.top_p != 1:
            problems.append(Problem("top_p", "applies only with a temperature above 0"))
        return problems

    @property
    def _given(self) -> bool:
        """Whether prompts are no file."""
        return self.prompts in (START, TARGET)

    def ce_by_origin(self) -> dict[str, float]:
        return {} if self.ce else {self.row_source: 0.0}

    @property
    def filters(self) -> Filters:
        """The filters that decide which samples are left out."""
        from holdfast.retention.self_samples import REPEATS, Filters

        default = None if self.prompts == START else REPEATS
        return Filters(
            least_tokens=self.least_tokens,
            max_repetition=default if self.max_repetition is None else self.max_repetition,
        )

    def draws(self, *, rows: int, tokens: float, window: int, at_once: int) -> Draws:
        longest = max(1, min(self.max_new_tokens, window - 1))
        share = self.fraction / (1 - self.fraction)
        samples = (
            math.ceil(rows * share)
            if self.unit == "examples"
            else math.ceil(tokens * share / longest)
        )
        samples, batch = min(samples, self.samples or samples), self.batch_size or at_once
        needed = (
            samples * longest if self.unit == "examples" else min(tokens * share, samples * longest)
        )
        passes = math.ceil(samples / batch) * longest
        return Draws(tokens=needed, samples=samples, passes=passes, batch=batch)

    def named_data(self) -> tuple[str, ...]:
        return () if self._given else (self.prompts,)

    def check_data(self, tokenizer: Any) -> None:
        from holdfast.data.prompts import prompts_by_name

        if self._given:
            return
        if not prompts_by_name(self.prompts, tokenizer)[0]:
            raise DataError(f"self_replay.prompts: expected prompts in {self.prompts}, found none.")

    def training_data(
        self, rows: Dataset, services: DataServices
    ) -> tuple[Dataset, dict[str, Any]]:
        from holdfast.data.mixing import GENERATED, mix_replay, tokenised_rows, total_tokens

        if self.unit == "tokens" and "images" in rows.column_names:
            raise ConfigError(
                "self_replay.unit: expected examples for rows with images, got tokens: the number "
                "of image tokens is known only when a batch is made. Set unit: examples. Then the "
                "fraction counts rows."
            )
        new = total_tokens(rows, services.cut) if self.unit == "tokens" else len(rows)
        needed = new * self.fraction / (1 - self.fraction)

        def lacking(drawn: Drawn) -> float:
            return needed - (drawn.tokens if self.unit == "tokens" else len(drawn.kept))

        drawn, about = self._draw(services, lacking)
        masked = 1 if self.prompts == START else None  # of a row: nothing predicts the first token
        ids = [(*sample.prompt, *sample.ids) for sample in drawn.kept]
        samples = tokenised_rows(ids, [masked or len(sample.prompt) for sample in drawn.kept])
        mixed, info = mix_replay(
            rows,
            samples,
            fraction=self.fraction,
            seed=services.seed,
            unit=self.unit,
            origin=GENERATED,
            longest=services.cut,
        )
        how = f"drew {drawn.new:,} in {drawn.seconds:.1f} s" if drawn.new else "found in the cache"
        services.say(
            f"Self-replay: {len(drawn.kept):,} samples, {drawn.tokens:,} tokens ({how}); {drawn.figures()}"
            + (f"; {info.repeated:,} rows are repeats" if info.repeated else "")
            + "."
        )
        return mixed, {**dataclasses.asdict(info), **about}

    def _draw(self, services: DataServices, lacking: Any) -> tuple[Drawn, dict[str, Any]]:
        """The samples, and what a run records of them."""
        from holdfast.retention.self_samples import Drawing, Stream
        from holdfast.support.cache import cache_folder
        from holdfast.support.files import fingerprint
        from holdfast.support.paths import expanded

        def draw(prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Sample]:
            return services.continued(
                prompts,
                max_new_tokens=tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=seed,
            )

        prompts, unusable = self._prompts(services)
        key = services.gather(
            services.together(lambda: services.start_key() if services.rank == 0 else None)
        )[0]
        stream = Stream(
            prompts=prompts,
            max_new_tokens=self.max_new_tokens,
            window=services.window,
            batch_size=self.batch_size or services.batch_size(),
            seed=self.seed,
            once=self.temperature == 0,
            how={
                "start": key,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "served": False,  # samples of a server, which earlier versions could ask, were others
            },
        )
        name = fingerprint(stream.facts, length=32)
        root = expanded(self.cache_dir) if self.cache_dir else cache_folder() / "self_replay"
        drawing = Drawing(
            services=services,
            stream=stream,
            filters=self.filters,
            draw=draw,
            folder=root / name,
            most=self.samples,
            max_dropped=self.max_dropped,
            advice=f"{self._advice()} Or raise max_dropped.",
        )
        drawn = drawing.until(lacking)
        about = {
            "prompts": len(prompts),
            "prompts_left_out": unusable,
            "drawn": drawn.drawn,
            "kept": len(drawn.kept),
            "cut": drawn.cut,
            "repeating": drawn.repeating,
            "dropped": dict(sorted(drawn.dropped.items())),
            "samples": name,
            "rows": fingerprint(
                [[list(sample.prompt), list(sample.ids)] for sample in drawn.kept], length=32
            ),
        }
        return drawn, about

    def _advice(self) -> str:
        if self.prompts == START:
            return (
                "An instruction-tuned model may write nothing without a prompt: give prompts "
                "(target, or a file)."
            )
        return (
            "Check the model's replies to these prompts. The prompts may lack the model's chat "
            "template, or the replies may need another temperature or a higher max_new_tokens. "
            "Otherwise use other prompts, or prompts: start."
        )

    def _prompts(self, services: DataServices) -> tuple[list[list[int]], int]:
        """Token ids of the prompts, those left out that are empty or leave no room for an answer,
        and how many."""
        if self.prompts == START:
            begin = services.beginning()
            if begin is None:
                raise ConfigError(
                    "self_replay.prompts: start expects a tokenizer with a beginning-of-text or "
                    "end-of-text token, got one with neither. Use prompts: target, or a file."
                )
            return [[begin]], 0
        if self.prompts == TARGET:
            from holdfast.data.mixing import prompts_of

            if "images" in services.new_rows.column_names:
                raise ConfigError(
                    "self_replay.prompts: expected start or a file for rows with images, got "
                    "target: the prompts of such rows are known only when a batch is made."
                )
            prompts, none = prompts_of(services.new_rows)
            where = "the training data"
        else:
            prompts, none = services.prompts(self.prompts)
            where = self.prompts
        fitting = [ids for ids in prompts if len(ids) + LEAST_ROOM <= services.window]
        if not fitting:
            longer = (
                f", and {len(prompts):,} prompts leave no room for a reply in "
                f"{services.window} tokens"
                if prompts
                else ""
            )
            raise DataError(
                f"self_replay.prompts: expected usable prompts in {where}, but {none:,} rows have no "
                f"prompt{longer}. The prompt of a row is its tokens before the first trained one. "
                "Give rows of prompt and completion, set assistant_only_loss, or use prompts: start."
            )
        return fitting, none + len(prompts) - len(fitting)
