"""NaN is a failure and never noise: wherever a model says NaN or infinity, the entry has failed, its comparisons have,
and no rule lets it pass."""

from __future__ import annotations

import dataclasses
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl
from evaluated_folders import TEXT, answers, texts, write, write_average
from evaluation.conftest import SENTENCES, make_model, parsed
from holdfast.cli.main import main
from holdfast.errors import NotFinite
from holdfast.evaluation import runner
from holdfast.evaluation.averages import SUITE
from holdfast.evaluation.compare.continual import stage_matrix
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.models import Loaded
from holdfast.records.comparison import NOT_FINITE, Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric, why_not_finite
from holdfast.support.files import read_json, write_json

NAN, INF = math.nan, math.inf
BAD = "zebra"
"""A word whose embedding is NaN in `broken_model`: texts without it are measured as ever."""


def broken_model(tokenizer: Any, value: float = NAN, *, whole: bool = False) -> Any:
    """A model that gives `value` wherever it has read `BAD`; `whole`: everywhere."""
    import torch

    model = make_model()
    bad = tokenizer(" Z", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        if whole:
            model.lm_head.weight.fill_(value)
        else:
            model.get_input_embeddings().weight[bad[-1]] = value
    return model


KINDS: dict[str, dict[str, Any]] = {
    "perplexity": {"perplexity": "texts.jsonl", "text": "{text}"},
    "memorisation": {"memorisation": "texts.jsonl", "text": "{text}"},
    "task": {"task": "colours.yaml"},
    "said": {"task": "said.yaml"},
    "followed": {"task": "followed.yaml"},
    "answers": {"answer_distribution": "letters.yaml"},
    "classes": {"classification": "texts.jsonl", "prompt": "{text} is", "options": [" dull", " fine"]},
    "choices": {"multiple_choice": "texts.jsonl"},
    "instructions": {"instructions": "texts.jsonl", "max_new_tokens": 2},
}
BLAMED = dict.fromkeys(
    ("perplexity", "memorisation", "classes", "choices"), "1 of 5 samples hold NaN or infinity (the first is row 3)."
)
BLAMED |= {
    "answer_distribution": "1 of 6 samples hold NaN or infinity (the first is row 4).",
    "task": "2 of 12 log-likelihoods are NaN or infinite.",
}
CHOICE = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_choice: options
doc_to_target: right
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
SAID = """\
task: said
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_target: "{{options[right]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 3}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    jsonl(path, rows)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Data for an entry of each kind; one row in five names what breaks the model."""
    columns = {"options": [" a", " b"], "instruction_id_list": ["plain:capitals"], "kwargs": [{}]}
    said = [f"{s} Z" if i == 2 else s for i, s in enumerate(SENTENCES)]
    write_rows(
        tmp_path / "texts.jsonl",
        [{"text": s, "prompt": s, "label": i % 2, "answer": i % 2, **columns} for i, s in enumerate(said)],
    )
    write_rows(tmp_path / "clean.jsonl", [{"text": s} for s in SENTENCES])
    asked = [f"Is it red {'Z' if i == 3 else ''}{i}?" for i in range(6)]
    write_rows(tmp_path / "colours.jsonl", [{"q": q, "options": ["red", "blue"], "right": 1} for q in asked])
    (tmp_path / "colours.yaml").write_text(CHOICE)
    letters = CHOICE.replace("task: colours", "task: letters").replace(
        "doc_to_choice: options", 'doc_to_choice: ["A", "B"]'
    )
    (tmp_path / "letters.yaml").write_text(letters)
    (tmp_path / "said.yaml").write_text(SAID)
    followed = CHOICE.replace("task: colours", "task: followed").replace("multiple_choice", "loglikelihood")
    followed = followed.replace("doc_to_choice: options\ndoc_to_target: right", 'doc_to_target: " {{options[right]}}"')
    (tmp_path / "followed.yaml").write_text(followed)
    return tmp_path


def planned(config: dict[str, Any], folder: Path) -> Any:
    plan, problems = parsed(config, folder)
    assert problems == []
    return plan


def measure(model: Any, tokenizer: Any, plan: Any, folder: Path, **more: Any) -> list[Evaluation]:
    loaded = Loaded(model=model, tokenizer=tokenizer, identity={"name": "tuned", "hash": "bbb"})
    return runner.evaluate(loaded, plan, folder=EvaluationFolder(folder), **more)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_of_any_kind_fails(kind, value, files, tiny_tokenizer):
    """One text in five is enough; where the figure would be a number all the same, such as an accuracy, it is none."""
    plan = planned({"keep": [KINDS[kind]]}, files)
    assert measure(make_model(), tiny_tokenizer, plan, files / "sound")[0].failed is None
    with pytest.raises(NotFinite) as caught:
        measure(broken_model(tiny_tokenizer, value), tiny_tokenizer, plan, files / "broken")
    assert caught.value.exit_code == 4
    [found] = EvaluationFolder(files / "broken").all()
    assert found.failed is not None and f"keep/{found.name}: {found.failed}" in str(caught.value)
    if kind in BLAMED:  # others that share its row are sound
        assert found.failed == BLAMED[kind]
    assert not any(math.isfinite(m.value) or m.interval for m in found.metrics.values())
    assert EvaluationFolder(files / "broken").samples("keep", found.name), "people have to see which it was"


def test_the_other_entries_are_measured_and_a_failed_one_is_measured_again(files, tiny_tokenizer, monkeypatch):
    entries = [KINDS["perplexity"], {"perplexity": "clean.jsonl", "name": "clean"}, KINDS["choices"]]
    averages = {"both": ["clean/nats_per_token", "texts/nats_per_token"]}
    plan = planned({"keep": entries[:2], "learn": entries[2:], "averages": averages}, files)
    asked: list[str] = []
    original = runner.measure
    monkeypatch.setattr(
        runner, "measure", lambda entry, on: (asked.append(f"{entry.suite}/{entry.name}"), original(entry, on))[1]
    )
    folder, cache = EvaluationFolder(files / "measured"), files / "cache"
    for _ in range(2):
        with pytest.raises(NotFinite, match=r"in 2 of 3 entries: keep/texts: .*learn/texts: "):
            measure(broken_model(tiny_tokenizer), tiny_tokenizer, plan, folder.path, cache=cache)
    assert asked == ["keep/texts", "keep/clean", "learn/texts", "keep/texts", "learn/texts"]
    clean, average = folder.find("keep", "clean"), folder.find(SUITE, "both")
    assert clean is not None and clean.failed is None and math.isfinite(clean.metrics["nats_per_token"].value)
    assert average is not None and "its member keep/texts" in str(average.failed)
    assert math.isnan(average.metrics["average"].value) and average.metrics["average"].interval is None
    assert len(list(cache.glob("*/evaluation.json"))) == 1, "what failed is shared with no other run"
    assert runner.kept_evaluations(plan, tiny_tokenizer, folder, {"hash": "bbb"}) is None
    assert not list(folder.path.glob(".*"))


def test_a_replys_logits_are_looked_at_token_by_token(files, tiny_tokenizer):
    """A model of NaN writes text as any other does, of which a program finds that it follows no instruction."""
    from holdfast.evaluation.eval_mode import evaluation_mode
    from holdfast.generation import continued

    encoded = [tiny_tokenizer("a fox")["input_ids"], tiny_tokenizer("the lazy dog")["input_ids"]]
    for model, broken in ((make_model(), False), (broken_model(tiny_tokenizer, whole=True), True)):
        with evaluation_mode(model):
            batch = continued(model, tiny_tokenizer, encoded, max_new_tokens=3)
        assert [one.broken for one in batch] == [broken, broken]
        assert all(one.ids for one in batch)


def test_what_no_logit_forbids_is_no_failure(tiny_tokenizer):
    """Minus infinity beside other logits is a probability of 0, as for tokens that do not exist."""
    import torch

    from holdfast.evaluation.text.perplexity import entropies
    from holdfast.generation import Watch

    watch = Watch()
    logits = torch.tensor([[0.0, -INF, 1.0]])
    assert torch.equal(watch(logits, logits), logits) and not watch.broken
    for wrong in ([0.0, NAN, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF]):
        watch = Watch()
        assert bool(watch(logits, torch.tensor([[0.0, 1.0, 2.0], wrong])).isfinite().all()) and watch.broken
    p = torch.tensor([0.25, 0.75])
    expected = float(-(p * p.log()).sum())
    assert float(entropies(torch.tensor([[0.25, 0.75, 0.0]]).log())[0]) == pytest.approx(expected)
    assert math.isnan(float(entropies(torch.tensor([[0.25, NAN, 0.0]]).log())[0]))


def test_a_metric_that_a_question_does_not_have_is_no_failure(files, tiny_tokenizer):
    """The harness's nanmean: NaN stands for "not asked here"; of what no question has there is no figure."""
    (files / "utils.py").write_text(
        "import math\n\n\ndef results(doc, found):\n"
        "    return {'some': 1.0 if '3' in doc['q'] else math.nan, 'none': math.nan, 'acc': 1.0}\n"
    )
    metrics = ", ".join(
        f"{{metric: {n}, aggregation: {a}, higher_is_better: true}}"
        for n, a in (("acc", "mean"), ("some", "nanmean"), ("none", "nanmean"))
    )
    text = SAID[: SAID.index("metric_list")] + f"process_results: !function utils.results\nmetric_list: [{metrics}]\n"
    (files / "said.yaml").write_text(text)
    [found] = measure(make_model(), tiny_tokenizer, planned({"keep": [KINDS["said"]]}, files), files / "found")
    assert found.failed is None and set(found.metrics) == {"acc", "some"} and found.metrics["some"].value == 1.0


# ------------------------------------------------------------------------------------------------------------- records


def metric(value: float = 0.5, interval: tuple[float, float] | None = (0.4, 0.6)) -> Metric:
    return Metric(value=value, n=9, unit="accuracy", higher_is_better=True, interval=interval)


@pytest.mark.parametrize(
    ("metrics", "rows", "expected"),
    [
        ({"acc": metric()}, [{"acc": 1.0, "p": [0.5, 0.5], "doc": "nan"}], None),
        ({"acc": metric(NAN)}, [], "acc is nan."),
        ({"acc": metric(interval=(0.4, INF))}, [], "the interval of acc is infinite."),
        (
            {},
            [{"nats": 1.0}, {"nats": NAN}, {"nats": -INF}],
            "2 of 3 samples hold NaN or infinity (the first is row 2).",
        ),
        ({}, [{"loglikelihoods": [-1.0, NAN]}], "1 of 1 samples hold NaN or infinity (the first is row 1)."),
        ({}, [{"scores": [True, 3, None, "x", [], {}]}], None),
        ({}, [{"scores": [1, "x", INF]}], "1 of 1 samples hold NaN or infinity (the first is row 1)."),
        ({}, [{"scores": {"a": [(1.0, INF)]}}], "1 of 1 samples hold NaN or infinity (the first is row 1)."),
    ],
)
def test_what_is_not_finite_is_found(metrics, rows, expected):
    assert why_not_finite(metrics, rows) == expected


def test_records_know_that_they_failed(tmp_path):
    """Also those that were written before there was a field for it."""
    write(tmp_path, "keep", "prose", texts([1.0, 2.0]), metrics=TEXT, values={"perplexity": NAN})
    path = tmp_path / "keep.prose.json"
    value = read_json(path)
    assert value.pop("failed") == "perplexity is nan."
    write_json(path, value)
    assert EvaluationFolder(tmp_path).all()[0].failed == "perplexity is nan."

    made = Comparison(
        suite="s", name="n", metric="acc", unit="accuracy", higher_is_better=True, n=2, before=0.5, after=0.5,
        difference=0.0, interval=(NAN, NAN), p_value=1.0, test="",
    )  # fmt: skip
    assert made.failed is None and made.verdict == "not shown", "one sample has no interval, and that is no failure"
    for changes in ({"before": NAN}, {"after": INF}, {"difference": NAN}, {"interval": (-INF, INF)}):
        assert dataclasses.replace(made, **changes).verdict == NOT_FINITE


# ----------------------------------------------------------------------------------------------------------- comparing


def sides(folder: Path) -> tuple[Path, Path]:
    """Two models on a text, a quiz, a metric that is no mean, and an average."""
    for label, shift in (("base", 0.0), ("tuned", 0.0)):
        place = folder / label
        write(
            place, "learn", "prose", texts([3.0 + shift + i / 10 for i in range(20)]), metrics=TEXT, kind="perplexity"
        )
        write(place, "keep", "quiz", answers([1, 0] * 20, loglikelihoods=lambda v: [-1.0, -2.0]))
        write(place, "keep", "riddles", answers([1, 1, 0, 0] * 10))
        write_average(place, [("keep", "quiz", "acc"), ("keep", "riddles", "acc")], name="mean")
    return folder / "base", folder / "tuned"


def change_rows(folder: Path, entry: str, change: Any) -> None:
    """Rows as an earlier version might have written them, without their digest in the evaluation."""
    change_record(folder, entry, lambda value: value.pop("samples_sha256", None))
    path = folder / f"{entry}.samples.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows[3])
    jsonl(path, rows)


def change_record(folder: Path, entry: str, change: Any) -> None:
    path = folder / f"{entry}.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def damage_score(folder: Path) -> None:
    change_rows(folder, "keep.quiz", lambda row: row.update(acc=NAN))


def damage_beside_score(folder: Path) -> None:
    change_rows(folder, "keep.quiz", lambda row: row["loglikelihoods"].append(NAN))


def damage_nats(folder: Path) -> None:
    change_rows(folder, "learn.prose", lambda row: row.update(nats=INF))


def overflow_nats(folder: Path) -> None:
    change_rows(folder, "learn.prose", lambda row: row.update(nats=1e308, tokens=1e-9))


def damage_record(folder: Path) -> None:
    change_record(folder, "keep.quiz", lambda value: value.update(failed="Logits."))


def damage_other_metric(folder: Path) -> None:
    change_record(folder, "learn.prose", lambda value: value["metrics"]["perplexity"].update(value=INF))


QUIZ, PROSE = ["keep/quiz", "keep/mean"], ["learn/prose"]


@pytest.mark.parametrize(
    ("side", "damage", "entries"),
    [
        ("tuned", damage_score, QUIZ),
        ("base", damage_beside_score, QUIZ),
        ("tuned", damage_record, QUIZ),
        ("tuned", damage_nats, PROSE),
        ("base", damage_other_metric, PROSE),
        ("tuned", overflow_nats, PROSE),
    ],
)
def test_a_gate_never_passes_what_is_not_finite(side, damage, entries, tmp_path, capsys):
    """Whatever the rules say, with and without --strict and without any; terminal, files and exit code agree."""
    base, tuned = map(str, sides(tmp_path))
    command = ["compare", base, tuned, "--resamples", "200", "--output_dir", str(tmp_path / "out")]
    assert main([*command, "--fail_if", "any drop > 50%"]) == 0
    damage(tmp_path / side)
    for options in (["--fail_if", "any drop > 50%", "--strict"], ["--fail_if", "riddles drop > 50%"], []):
        assert main([*command, *options]) == 4
        printed = capsys.readouterr()
        assert f"{entries[0]}: " in printed.err and "Not finite: " in printed.out
        record = read_json(tmp_path / "out" / "comparison.json")
        assert record["failed"] is True
        assert {line.partition(": ")[0] for line in record["not_finite"]} == set(entries)
        for gate in record["gates"]:
            expected = NOT_FINITE if f"{gate['suite']}/{gate['name']}" in entries else "passed"
            assert gate["outcome"] == expected
        for comparison in record["comparisons"]:
            failed = f"{comparison['suite']}/{comparison['name']}" in entries
            assert math.isnan(comparison["difference"]) == (comparison["failed"] is not None) == failed
    junit = ET.fromstring((tmp_path / "out" / "comparison.xml").read_bytes())[0]
    assert len(junit.findall("testcase/error")) >= 1


def test_text_in_place_of_a_number_is_not_compared(tmp_path, capsys):
    """JSON has no NaN; null and text are no numbers, and no rule about them passes."""
    before, after = sides(tmp_path)
    for value in (None, "NaN"):
        change_rows(after, "learn.prose", lambda row, value=value: row.update(nats=value))
        _, left_out = compare_folders(EvaluationFolder(before), EvaluationFolder(after))
        assert any("learn/prose: nats_per_token has no number for some samples" in line for line in left_out)
        assert main(["compare", str(before), str(after), "--fail_if", "prose drop > 50%", "--resamples", "200"]) == 2
        assert "has no number for some samples" in capsys.readouterr().err


def test_stages_of_training_fail_too(tmp_path):
    """The start and the end are finite, a stage between is not."""
    for label in ("start", "math", "law"):
        sides(tmp_path / label)
    folders = [EvaluationFolder(tmp_path / label / "tuned") for label in ("start", "math", "law")]
    tasks = [("keep", "quiz"), ("keep", "riddles")]
    assert stage_matrix(folders, tasks, ["start", "math", "law"], resamples=200).failed == []
    change_rows(folders[1].path, "keep.quiz", lambda row: row.update(acc=NAN))
    matrix = stage_matrix(folders, tasks, ["start", "math", "law"], resamples=200)
    assert len(matrix.failed) == 1 and "keep/quiz: model 2: 1 of 40 samples" in matrix.failed[0]
    assert all(math.isnan(row[0]) and math.isfinite(row[1]) for row in matrix.scores)
    assert math.isnan(matrix.measures["average_accuracy"].value)
