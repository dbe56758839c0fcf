"""`holdfast data select` beyond one machine: a pipeline of datatrove ranks shares of a corpus, and one machine chooses.

```
executor of datatrove (local, Slurm, Ray)                                     one machine
RankShard: rank 0 reads files 0, n, 2n, ... -> ranks/00000.jsonl   }
           rank 1 reads files 1, n + 1, ... -> ranks/00001.jsonl   }  ->  select_ranked: duplicates, budget, sets
           ...                                                     }
```

`RankShard` is a block of a datatrove pipeline: the last one after its readers and filters, or the only one, which reads
its share of the files itself, as one machine would. Every rank keeps its scores in a ledger of its own, so that a rank
that was killed and is run again scores the rest. `select_ranked` needs no model: it finds equal passages
across ranks and writes the same folder as `select`.

datatrove is not imported here: it calls any object with (documents, rank, number of ranks). It comes with
`pip install 'holdfast[corpora]'`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config.declare import part_of
from holdfast.data.select.request import LEDGER, Choice
from holdfast.errors import ConfigError, DataError
from holdfast.runs.selecting import Selection, scorer_of
from holdfast.support.files import read_json, whole_file, write_json
from holdfast.support.leftovers import scratch_folder

if TYPE_CHECKING:
    from holdfast.data.select.run import Selected

_FOLDER = "ranks"


@dataclass(frozen=True, kw_only=True)
class RankShard:
    """A block of a datatrove pipeline that ranks passages of its rank's documents."""

    request: Selection
    """As for one machine; `output` is a folder that all ranks see."""

    def __call__(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        """Writes the passages of one rank with their scores.

        Args:
            data: documents of datatrove (`text`, `id`, `metadata`); None: every `world_size`-th of the request's files.
            rank: which share.
            world_size: shares in all.

        Raises:
            ConfigError, DataError, ModelError, NotFinite, StorageError: see `select`.
        """
        from holdfast.data.select.overlap import Questions
        from holdfast.data.select.passages import Passages
        from holdfast.data.select.run import DocumentsInFiles, DocumentsInMemory, gather
        from holdfast.data.select.scores import score_passages
        from holdfast.models import load

        asked = self.request
        if data is None and (problems := asked.problems()):
            raise ConfigError(problems)
        folder = asked.output / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        loaded = load(asked.model, dtype=asked.dtype, device=asked.device, trust_remote_code=asked.trust_remote_code)
        scorer = scorer_of(loaded, max_length=asked.max_length, batch_tokens=asked.batch_tokens)
        every = Choice(tokens=1, max_length=asked.max_length, minimum_tokens=asked.minimum_tokens)
        with scratch_folder(folder, f".{rank:05d}-") as scratch, Passages(scratch) as passages:
            if data is None:
                found = asked.found_inputs()
                own = dataclasses.replace(found, files=found.files[rank::world_size])
                source: Any = DocumentsInFiles(asked, own)
            else:
                source = DocumentsInMemory((one.text, str(one.metadata.get("url") or one.id)) for one in data)
            gather(source, every, scorer, Questions(()), passages)
            nats = score_passages(passages, scorer, folder / f"{rank:05d}.{LEDGER}")
            with whole_file(folder / f"{rank:05d}.jsonl") as file:
                for index in range(len(passages)):
                    row = {**passages.row(index), "nats_per_token": float(nats[index])}
                    row |= {"tokens": passages.tokens[index], "document": passages.documents[index]}
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            write_json(
                folder / f"{rank:05d}.json",
                {
                    "world_size": world_size,
                    "scorer": {"identity": scorer.identity, "bos": scorer.bos},
                    "counts": source.counts,
                    "skipped": dict(source.skipped),
                    "malformed_places": source.places,
                },
            )


def select_ranked(request: Selection) -> Selected:
    """Chooses among the passages that all ranks have scored, and writes the sets.

    Args:
        request: the one that the ranks had.

    Raises:
        DataError: a rank is not done; or what `select` raises.
        ConfigError, RunFolderError, StorageError: see `select`.
    """
    from holdfast.data.select.run import select_passages
    from holdfast.data.select.scores import Scorer
    from holdfast.models import load_tokenizer
    from holdfast.support.ledger import stream_ledger

    folder = request.output / _FOLDER
    records = {path: read_json(path) for path in sorted(folder.glob("[0-9]*.json"))}
    expected = max((one["world_size"] for one in records.values()), default=1)
    if len(records) != expected or len({json.dumps(one["scorer"]) for one in records.values()}) != 1:
        raise DataError(
            f"Expected {expected} ranks in {folder} that one model has scored, found {len(records)} that are done. Run "
            f"the pipeline again: what is done is not done twice."
        )
    known = next(iter(records.values()))["scorer"]
    ledger = folder / LEDGER
    with whole_file(ledger) as file:
        for path in records:
            for row in stream_ledger(path.with_name(f"{path.stem}.{LEDGER}")):
                file.write(json.dumps(row).encode() + b"\n")

    def score(rows: Sequence[Sequence[int]]) -> Sequence[float]:
        raise DataError(
            f"{len(rows)} passages in {folder} have no score: its files come from several requests. Remove the folder "
            f"and run the pipeline again."
        )

    found = select_passages(
        _documents(list(records)),
        choice=part_of(request, Choice),
        scorer=Scorer(
            tokenizer=load_tokenizer(request.model, trust_remote_code=request.trust_remote_code),
            score=score,
            identity=known["identity"],
            bos=known["bos"],
        ),
        output=request.output,
        scores=ledger,
    )
    if not found.done_before:
        total: Counter[str] = Counter()
        for one in records.values():
            total.update({"records": one["counts"]["records"], "malformed": one["counts"]["malformed"]})
            total.update(one["skipped"])
        places = [place for one in records.values() for place in one["malformed_places"]]
        found.record["ranks"] = {"count": expected, "counts": dict(total), "malformed_places": places}
        write_json(request.output / "selection.json", found.record)
    return found


def _documents(ranks: Sequence[Path]) -> Iterator[tuple[list[str], str]]:
    """The passages of every document, and its source."""
    for path in ranks:
        with open(path.with_suffix(".jsonl"), encoding="utf-8") as file:
            for _, group in itertools.groupby(map(json.loads, file), key=lambda row: row["document"]):
                rows = list(group)
                yield [row["text"] for row in rows], rows[0]["source"]
