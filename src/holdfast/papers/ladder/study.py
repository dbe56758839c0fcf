"""Pre-training a ladder as the engine runs it: the text is tokenised once, then every budget is a
run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import ConfigError, HoldfastError
from holdfast.papers.ladder.plan import RUNG, TEXT, LadderConfig, Rung, refuse_little_text
from holdfast.papers.ladder.record import RECORD_FILE, LadderRecord, PretrainedRung, SizeAbout
from holdfast.records.evaluation import Metric
from holdfast.records.run import RunFolder
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.base import ConfiguredStudy
from holdfast.studies.engine.models import train_model
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import CannotJudge, JobState, StudyState, Writer
from holdfast.support.files import read_object, write_bytes_atomic

if TYPE_CHECKING:
    import datasets

    from holdfast.studies.engine.worker import Task

_TOKENIZER_CHARACTERS = 20_000_000
"""Of the text that a tokenizer is trained on, taken from all over it."""


@dataclass(frozen=True, kw_only=True)
class RungResult:
    """What came of a job."""

    tokens: int
    """Of the text, or read by the run."""
    notes: list[str] = field(default_factory=list)
    """On the text."""


class LadderStudy(ConfiguredStudy[LadderConfig]):
    """Pre-training of a ladder."""

    config_class: ClassVar[type[LadderConfig]] = LadderConfig
    noun: ClassVar[str] = "run"
    markers: ClassVar[tuple[str, ...]] = (
        RECORD_FILE,
        "study.db",
        "logs",
        "data",
        "tokens",
        "tokenizer",
    )
    one_in_process: ClassVar[bool] = True  # a single run then shows how far it is itself

    def seeds_of(self, attributes: Mapping[str, Any]) -> Sequence[int]:
        """The text is tokenised once."""
        return self.seeds[:1] if attributes.get(RUNG) == TEXT else self.seeds

    # ----------------------------------------------------------------------------------------- runs

    def make(self, task: Task) -> RungResult:
        """The text as windows, or one run.

        Raises:
            CannotJudge: too little text for a budget.
            HoldfastError: the text was not tokenised, or the run failed.
        """
        if task.attributes[RUNG] == TEXT:
            return self._tokenise()
        from holdfast.models import load_tokenizer
        from holdfast.papers.ladder.token_windows import INFO_FILE
        from holdfast.training.fresh_model import write_fresh

        config, rung = self.settings, self.settings.rungs[task.attributes[RUNG]]
        if not (config.tokens / INFO_FILE).is_file():
            raise HoldfastError("needs the tokenised text, which is missing")
        multipliers = write_fresh(
            config.decoder(rung.size),
            load_tokenizer(config.tokenizer),
            config.fresh(rung.size, task.seed),
            seed=task.seed,
            base_width=config.request.base_width,
        )
        settings = config.training(rung, task.seed, multipliers)
        trained = train_model(settings, (), 0, cache=config.output_dir / "evaluations", task=task)
        return RungResult(tokens=trained.tokens)

    def _tokenise(self) -> RungResult:
        from holdfast.models import load_tokenizer
        from holdfast.papers.ladder.token_windows import write_tokens
        from holdfast.training.fresh_model import decoder_config

        config = self.settings
        names = [str(name) for name in config.with_paths(list(config.request.text))]
        if config.request.tokenizer is None:
            self._train_tokenizer(names)
        tokenizer = load_tokenizer(config.tokenizer)
        info = write_tokens(names, tokenizer, config.request.context, config.tokens)
        try:
            refuse_little_text(config, info.tokens)
            for name in config.request.sizes:
                decoder_config(config.decoder(name), vocabulary=len(tokenizer))
        except ConfigError as error:
            raise CannotJudge(error.problems) from error
        return RungResult(tokens=info.tokens, notes=self._held_out(names))

    def _held_out(self, names: Sequence[str]) -> list[str]:
        """What of the text is measured on."""
        from holdfast.papers.ladder.token_windows import text_rows
        from holdfast.studies.engine.held_out import HeldOut
        from holdfast.support.progress import progress

        config, what = self.settings, "the text"
        held_out, sources = HeldOut(config.plan.entries), [text_rows(name) for name in names]
        with progress(
            "Looking for held-out documents in the text", total=sum(map(len, sources))
        ) as advance:
            overlaps = held_out.stands_in(_texts(sources, advance), what=what)
        return held_out.judged(overlaps, overlap=config.request.overlap, what=what)

    def _train_tokenizer(self, names: Sequence[str]) -> None:
        """On documents from all over the text."""
        from holdfast.papers.ladder.token_windows import text_rows
        from holdfast.papers.worlds.embedded import train_tokenizer
        from holdfast.support.leftovers import scratch_folder

        folder = Path(self.settings.tokenizer)
        if folder.is_dir():
            return
        texts: list[str] = []
        for name in names:
            rows = text_rows(name)
            some = rows.select(range(0, len(rows), max(1, len(rows) // 1000)))["text"]
            mean = max(1.0, sum(map(len, some)) / len(some))
            step = max(1, int(len(rows) * mean * len(names) / _TOKENIZER_CHARACTERS))
            texts += rows.select(range(0, len(rows), step))["text"]
        tokenizer = train_tokenizer(texts, vocab_size=self.settings.request.vocab_size)
        with scratch_folder(folder.parent, ".tokenizer-") as scratch:
            tokenizer.save_pretrained(scratch / folder.name)
            (scratch / folder.name).rename(folder)

    def running(self, job: JobState) -> Mapping[str, Any] | None:
        """See `ConfiguredStudy`."""
        if job.attributes[RUNG] == TEXT:
            return None
        rung, done = self.settings.rungs[job.attributes[RUNG]], len(self.results(job.attributes))
        return self.settings.training(rung, self.seeds[done], {})

    def clean(self, state: StudyState) -> None:
        """Deletes what resuming needed, of runs that have ended."""
        from holdfast.studies.engine.worker import remove_checkpoints

        for job in state.latest:
            if job.state == COMPLETE and job.attributes[RUNG] != TEXT:
                for seed in self.seeds:
                    remove_checkpoints(
                        self.settings.run_folder(self.settings.rungs[job.attributes[RUNG]], seed)
                    )

    # -------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> LadderRecord:
        """The ladder as in ladder.json."""
        config, notes = self.settings, list[str]()
        by_rung = {job.attributes[RUNG]: job for job in state.latest}
        rungs = []
        for rung, seed in itertools.product(config.rungs.values(), self.seeds):
            if rung.name in by_rung:
                rungs.append(self._rung(rung, seed, by_rung[rung.name]))
        text = by_rung.get(TEXT)
        if text is not None:
            for result in self.results(text.attributes):
                notes += result.get("notes", ())
            reason = text.attributes.get(stored.REASON)
            if reason is not None:
                notes.append(f"Tokenising failed: {reason}")
        tokens = config.tokens / "tokens.json"
        return LadderRecord(
            **state.record_fields(config.resolved, notes),
            sizes={name: self._about(name) for name in config.request.sizes},
            rungs=rungs,
            text=read_object(tokens) if tokens.is_file() else {},
        )

    def _about(self, name: str) -> SizeAbout:
        decoder = self.settings.decoder(name)
        shape = {
            "layers": decoder.layers,
            "width": decoder.width,
            "heads": decoder.heads,
            "mlp": decoder.mlp,
        }
        rungs = [rung for rung in self.settings.rungs.values() if rung.size == name]
        for rung in rungs:
            with contextlib.suppress(HoldfastError, OSError):
                model = RunFolder(self.settings.run_folder(rung, self.seeds[0])).read().model
                parameters, table = (
                    int(model["parameters"]),
                    int(model["vocabulary"]) * decoder.width,
                )
                tables = 1 if decoder.more.get("tie_word_embeddings") else 2
                return SizeAbout(
                    **shape, parameters=parameters, without_tables=parameters - tables * table
                )
        return SizeAbout(**shape)

    def _rung(self, rung: Rung, seed: int, job: JobState) -> PretrainedRung:
        config = self.settings
        run = RunFolder(config.run_folder(rung, seed))
        record = PretrainedRung(
            size=rung.size,
            budget=rung.budget,
            seed=seed,
            folder=run.path.name,
            state=job.state,
            reason=job.attributes.get(stored.REASON),
        )
        with contextlib.suppress(HoldfastError, OSError):
            training = run.read().training
            rows = [row for row in run.metrics() if "loss" in row]
            record = replace(
                record,
                tokens=int(training.get("tokens") or 0),
                steps=int(training.get("steps") or 0),
                seconds=float(training.get("seconds") or 0.0),
                loss=float(rows[-1]["loss"]) if rows else None,
                curve=[(int(row.get("tokens", 0)), float(row["loss"])) for row in rows],
            )
        figures: dict[str, Metric] = {}
        with contextlib.suppress(HoldfastError, OSError):
            measured = run.evaluated("result")
            for entry in config.plan.entries:
                evaluation = measured.find(entry.suite, entry.name)
                if evaluation is not None:
                    figures[f"{entry.suite}/{entry.name}"] = evaluation.leading
        return replace(record, figures=figures)

    def complete(self, record: LadderRecord) -> LadderRecord:
        """Writes the ladder of each size and seed, for commands that take one."""
        import yaml

        config = self.settings
        for size in config.request.sizes:
            for seed in self.seeds:
                rows = []
                for rung in record.rungs:
                    if (rung.size, rung.seed, rung.state) == (size, seed, COMPLETE):
                        model = str(config.output_dir / rung.folder)
                        rows.append(
                            {"model": model, "tokens": float(rung.tokens), "label": rung.folder}
                        )
                if rows:
                    more = f"-seed{seed}" if len(self.seeds) > 1 else ""
                    text = yaml.safe_dump({"ladder": rows}, sort_keys=False)
                    write_bytes_atomic(config.output_dir / f"{size}{more}.yaml", text.encode())
        return record

    def show(self, record: Any, console: Any) -> None:
        """See `Study.show`."""
        from holdfast.papers.ladder.page import print_ladder

        print_ladder(record, self.settings.output_dir, console)

    def page(self, record: LadderRecord) -> Writer:
        """The page on what is there."""
        from holdfast.papers.ladder.page import ladder_page
        from holdfast.reports.html import write_page

        return lambda path: write_page(ladder_page(record), path)


def _texts(sources: Sequence[datasets.Dataset], advance: Callable[[float], None]) -> Iterator[str]:
    """The documents of several sources."""
    for rows in sources:
        for batch in rows.iter(batch_size=1_000):
            yield from batch["text"]
            advance(len(batch["text"]))
