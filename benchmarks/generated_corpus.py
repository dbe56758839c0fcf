"""Does `holdfast diagnose --corpus generated` say what it says with real text? On the toy worlds of the stages study.

    python benchmarks/generated_corpus.py 0              # world 0; a world is a seed
    python benchmarks/generated_corpus.py 0 1 2 3 4 5    # goes on where it was stopped; the table of all that are there
    python benchmarks/generated_corpus.py --table        # the table alone
    python benchmarks/generated_corpus.py 0 --quick      # a minute or two: the machinery only

A world's base is tuned for ten epochs as configs/stages/tiny.yaml has it, once. Its checkpoints after epochs 1, 3 and
10 are then diagnosed three times, restored with one dose (the tokens of an epoch of the fine-tuning) of

real       the world's corpus: text of the base's pre-training kind that names nobody who is asked about
generated  what the base writes itself, as `--corpus generated` has it
unnamed    the same without the texts that name somebody who is asked about

All else is the study's own (rates, margins, the questions old_facts); its other entries, larger doses and curves are
left out.
`unnamed` tells why `generated` and `real` part, where they do: where it goes along with `real`, it is what the text
says; where it does not, it is that a model wrote it.

Rules, written before any outcome of this comparison was seen. A verdict is *contradicted* where one text says pseudo
and the other actual forgetting. Shift: the restored model's score on generated minus on real text, by checkpoint, mean
over worlds with its 95 % interval over worlds (of one world, over its questions).

agree       no verdict of any world is contradicted, and every checkpoint's shift is within 5 points with its interval
part        the interval of a checkpoint's shift lies beyond 5 points, or verdicts of two worlds are contradicted
cannot tell all else
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUNS = Path("runs/generated_corpus")
EPOCHS = (1, 3, 10)
REAL, GENERATED, UNNAMED = "real", "generated", "unnamed"
ARMS = (REAL, GENERATED, UNNAMED)
MARGIN = 5.0
"""Points, the study's own margin."""
SPARE = 1.15
"""Of generated text, on top of what is left without names."""


def study_values(world: int, names: dict[str, str], *, quick: bool) -> dict[str, Any]:
    """The keys of configs/stages/tiny.yaml in a world whose files are there."""
    import yaml

    from holdfast.studies.engine.toy import fill

    values = yaml.safe_load((ROOT / "configs" / "stages" / "tiny.yaml").read_text(encoding="utf-8"))
    del values["toy"]
    values = fill(values, names)
    values |= {"seed": world, "along": {}, "curve": 0, "doses": [1]}
    values["keep"] = [entry for entry in values["keep"] if entry.get("name") == "old_facts"]
    if quick:
        values["train"]["num_train_epochs"] = 2
        values |= {"probing_passages": 8, "even_at_chance": True}
    return dict(values)


def command(values: dict[str, Any], file: Path, *words: str) -> None:
    """A command of holdfast with a YAML file.

    Raises:
        SystemExit: it failed.
    """
    import yaml

    from holdfast.cli.main import main as holdfast

    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    code = holdfast([*words, "--config", str(file)])
    if code:
        sys.exit(code)


def tune(values: dict[str, Any], folder: Path) -> list[str]:
    """The checkpoints of the fine-tuning, one an epoch."""
    from holdfast.studies.stages.plan import StagesConfig
    from holdfast.training.checkpoint_folders import checkpoints_in

    config = StagesConfig.read({**values, "output_dir": str(folder / "tune")})
    settings = config.tuning("direct")
    run = Path(settings["output_dir"])
    if not run.is_dir() or len(checkpoints_in(run)) < config.epochs:
        command(settings, folder / "tune.yaml", "train")
    return [str(path) for path in checkpoints_in(run)]


def unnamed_corpus(values: dict[str, Any], questions: Path, folder: Path) -> Path:
    """Text of the base's own without the texts that name somebody who is asked about."""
    from holdfast.models import load
    from holdfast.runs.generated_text import write_generated
    from holdfast.studies.stages.plan import StagesConfig
    from holdfast.support.files import read_jsonl, write_json, write_jsonl

    output = folder / "unnamed.jsonl"
    if output.is_file():
        return output
    names = {row["name"] for row in read_jsonl(questions)}
    config = StagesConfig.read({**values, "corpus": ["generated"], "output_dir": str(folder / "written")})
    config.generated.parent.mkdir(parents=True, exist_ok=True)
    config.generated.touch()
    loaded = load(config.base, device="cpu")
    tokens, named = int(values["tokens"]), 0.0
    for _ in range(3):  # how many of them name somebody is known once there are some
        selection, problems = config.selection(int(tokens / (1.0 - named) * SPARE))
        if selection is None:
            sys.exit("\n".join(map(str, problems)))
        write_generated(selection, loaded, config.generated)
        texts = [row["text"] for row in read_jsonl(config.generated)]
        kept = [text for text in texts if not any(name in text for name in names)]
        characters = sum(map(len, texts))
        named = 1.0 - sum(map(len, kept)) / characters
        lengths = [len(loaded.tokenizer(text)["input_ids"]) for text in kept]
        if sum(lengths) >= tokens + selection.probing * selection.max_length:
            break
    write_jsonl(output, [{"text": text} for text in kept])
    write_json(
        folder / "named.json",
        {"texts": len(texts), "naming": len(texts) - len(kept), "share_of_characters": named},
    )
    return output


def measure(world: int, *, quick: bool) -> None:
    """Makes a world's models and diagnoses them with every text."""
    from rich.console import Console

    from holdfast.papers.worlds.toy_settings import make_setting
    from holdfast.records.run import RunFolder

    folder = RUNS / f"world-{world}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    names = make_setting("stages", folder / "data", seed=world, quick=quick, console=Console(file=sys.stderr))
    values = study_values(world, names, quick=quick)
    checkpoints = tune(values, folder)
    epochs = (1, 2) if quick else EPOCHS
    del values["train"]
    values["tuned"] = [checkpoints[epoch - 1] for epoch in epochs]
    tuned = RunFolder(Path(checkpoints[0]).parent).read()
    values["tokens"] = round(tuned.training["tokens"] / len(checkpoints))
    corpora = {
        REAL: values["corpus"],
        GENERATED: ["generated"],
        UNNAMED: [str(unnamed_corpus(values, Path(names["old_facts"]), folder))],
    }
    for arm, corpus in corpora.items():
        request = {**values, "name": arm, "corpus": corpus, "output_dir": str(folder / arm)}
        command(request, folder / f"{arm}.yaml", "diagnose", "--workers", "1")
    print(f"world {world}: {time.process_time() - began:.0f} s of this process", file=sys.stderr)


# ------------------------------------------------------------------------------------------- figures


def scores(folder: Path, place: int) -> dict[str, float]:
    """Right answers of a restored model, by question."""
    from holdfast.records.run import RunFolder
    from holdfast.support.files import read_jsonl

    run = RunFolder(folder / "runs" / f"tuned-{place}-restored").evaluated("result")
    rows = read_jsonl(run.path / "knowledge.old_facts.samples.jsonl")
    return {row["doc"]: float(row["acc"]) for row in rows}


def world_figures(world: int) -> dict[str, Any] | None:
    """What came of a world; None where it is not finished."""
    from holdfast.records.stages import BASE, CONTROL, RESTORED, TUNED, read_stages
    from holdfast.support.files import read_object

    folder = RUNS / f"world-{world}"
    if not all((folder / arm / "stages.json").is_file() for arm in ARMS):
        return None
    records = {arm: read_stages(folder / arm) for arm in ARMS}
    if any(record.status != "finished" for record in records.values()):
        return None
    figures: dict[str, Any] = {"world": world, "named": read_object(folder / "named.json"), "arms": {}}
    for arm, record in records.items():

        def value(role: str, place: int = 0, *, record: Any = record) -> float:
            model = record.model(role, "tuned" if place else "", place)
            return float(model.figures["knowledge/old_facts"]["acc"].value)

        rows = []
        for verdict in record.verdicts:
            rows.append(
                {
                    "checkpoint": record.checkpoints["tuned"][verdict.place - 1],
                    "tuned": value(TUNED, verdict.place),
                    "restored": value(RESTORED, verdict.place),
                    "text": verdict.pattern.difference if verdict.pattern else None,
                    "verdict": verdict.verdict,
                    "why": verdict.why,
                }
            )
        figures["arms"][arm] = {"base": value(BASE), "control": value(CONTROL), "checkpoints": rows}
    for arm in (GENERATED, UNNAMED):
        shifts = []
        for place in range(1, len(rows) + 1):
            ours, real = scores(folder / arm, place), scores(folder / REAL, place)
            shifts.append([100 * (ours[doc] - real[doc]) for doc in real])
        figures["arms"][arm]["shift"] = [statistics.fmean(shift) for shift in shifts]
        figures["arms"][arm]["shift_error"] = [statistics.stdev(shift) / math.sqrt(len(shift)) for shift in shifts]
    return figures


def interval(worlds: list[dict[str, Any]], arm: str, place: int) -> tuple[float, float, float]:
    """A checkpoint's shift in points, and its 95 % interval over worlds; of one world, over questions."""
    from scipy.stats import t

    shifts = [figures["arms"][arm]["shift"][place] for figures in worlds]
    mean = statistics.fmean(shifts)
    if len(worlds) > 1:
        half = t.ppf(0.975, len(worlds) - 1) * statistics.stdev(shifts) / math.sqrt(len(worlds))
    else:
        half = 1.96 * worlds[0]["arms"][arm]["shift_error"][place]
    return mean, mean - half, mean + half


def contradicted(figures: dict[str, Any], arm: str) -> int:
    """Checkpoints of a world of which one text says pseudo and the other actual forgetting."""
    count = 0
    for ours, real in zip(figures["arms"][arm]["checkpoints"], figures["arms"][REAL]["checkpoints"], strict=True):
        count += {ours["verdict"], real["verdict"]} == {"pseudo forgetting", "actual forgetting"}
    return count


def judged(worlds: list[dict[str, Any]], arm: str, places: int) -> str:
    """`agree`, `part` or `cannot tell`, by the rules above."""
    intervals = [interval(worlds, arm, place) for place in range(places)]
    against = sum(contradicted(figures, arm) > 0 for figures in worlds)
    if against > 1 or any(low > MARGIN or high < -MARGIN for _, low, high in intervals):
        return "part"
    if not against and all(low >= -MARGIN and high <= MARGIN for _, low, high in intervals):
        return "agree"
    return "cannot tell"


def table(worlds: list[dict[str, Any]]) -> str:
    """Everything as Markdown."""
    lines = ["| world | text | base, control | epoch: tuned / restored, text | verdict |", "|---|---|---|---|---|"]
    for figures in worlds:
        for arm in ARMS:
            of_arm = figures["arms"][arm]
            levels = f"{of_arm['base']:.3f}, {of_arm['control']:.3f}"
            for epoch, row in zip(EPOCHS, of_arm["checkpoints"], strict=False):
                text = "" if row["text"] is None else f", {row['text']:+.3f}"
                cells = f"{epoch}: {row['tuned']:.3f} / {row['restored']:.3f}{text}"
                why = f" ({row['why']})" if row["verdict"] == "inconclusive" else ""
                lines.append(f"| {figures['world']} | {arm} | {levels} | {cells} | {row['verdict']}{why} |")
        named = figures["named"]
        share = f"{100 * named['share_of_characters']:.0f} % of its characters"
        lines.append(f"| {figures['world']} | named | | {named['naming']:,} of {named['texts']:,} texts, {share} | |")
    places = len(worlds[0]["arms"][REAL]["checkpoints"])
    for arm in (GENERATED, UNNAMED):
        shifts = []
        for place in range(places):
            mean, low, high = interval(worlds, arm, place)
            shifts.append(f"epoch {EPOCHS[place]}: {mean:+.1f} [{low:+.1f}, {high:+.1f}]")
        against = sum(contradicted(figures, arm) for figures in worlds)
        lines.append(
            f"\n{arm} against real, {len(worlds)} world(s): {judged(worlds, arm, places)}. Shift in points: "
            f"{'; '.join(shifts)}. Contradicted verdicts: {against} of {places * len(worlds)}."
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", type=int, help="which worlds, by their seeds")
    parser.add_argument("--table", action="store_true", help="the table of what is there, and nothing else")
    parser.add_argument("--quick", action="store_true", help="a minute or two: the machinery only")
    parser.add_argument("--save", type=Path, metavar="FILE", help="writes the figures as JSON")
    options = parser.parse_args(arguments)
    if not options.worlds and not options.table:
        parser.error("expected worlds, such as 0 1 2, or --table")
    for world in [] if options.table else options.worlds:
        measure(world, quick=options.quick)
    worlds = [figures for world in range(100) if (figures := world_figures(world)) is not None]
    if not worlds:
        print("No world is finished.")
        return 1
    print(table(worlds))
    if options.save is not None:
        options.save.write_text(json.dumps(worlds, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
