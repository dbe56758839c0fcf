"""Tables of scores: every form of a CSV, clusters, several metrics, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from holdfast.errors import DataError
from holdfast.evaluation.compare.request import CompareSettings, find_sides
from holdfast.evaluation.compare.result import Result, compare_sides
from holdfast.evaluation.foreign.table import read


def table(path: Path, rows: list[dict[str, Any]], delimiter: str = ",", start: str = "") -> Path:
    lines = [delimiter.join(rows[0])]
    lines += [delimiter.join(str(value) for value in row.values()) for row in rows]
    path.write_text(start + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def right_or_wrong(seed: int, n: int = 60) -> list[dict[str, Any]]:
    return [{"id": f"q{i}", "score": int(s)} for i, s in enumerate(np.random.default_rng(seed).random(n) < 0.6)]


def compare(before: Path, after: Path, **settings: Any) -> Result:
    sides, problems = find_sides([str(before), str(after)])
    assert not problems, problems
    return compare_sides(sides, (), CompareSettings(**settings))


# --------------------------------------------------------------------------------------------------------------- forms


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["commas", "semicolons", "tabs"])
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_every_form_of_a_csv_gives_exact_mcnemar(tmp_path, delimiter, start):
    first, second = right_or_wrong(0), right_or_wrong(1)
    files = (
        table(tmp_path / "base.csv", first, delimiter, start),
        table(tmp_path / "tuned.csv", second[::-1]),  # in another order
    )
    result = compare(*files)
    lost = sum(a["score"] > b["score"] for a, b in zip(first, second, strict=True))
    gained = sum(a["score"] < b["score"] for a, b in zip(first, second, strict=True))
    [c] = result.comparisons
    assert result.labels == ("base", "tuned")
    assert (c.suite, c.name, c.metric, c.unit, c.n) == ("table", "score", "score", "accuracy", 60)
    assert (c.flips_lost, c.flips_gained) == (lost, gained)
    assert c.p_value == pytest.approx(binomtest(lost, lost + gained).pvalue)


def test_json_lines_are_read_as_a_csv_is(tmp_path):
    rows = right_or_wrong(0)
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({**row, "score": bool(row["score"])}) + "\n" for row in rows))
    [c] = compare(table(tmp_path / "b.csv", rows), lines).comparisons
    assert (c.difference, c.n) == (0.0, 60)


def test_each_metric_is_an_entry_with_its_own_direction(tmp_path):
    def write(name: str, shift: float) -> Path:
        rows = []
        for i in range(30):
            rows.append({"id": i, "score": round(0.5 + shift, 3), "metric": "f1"})
            rows.append({"id": i, "score": round(3.0 + shift, 3), "metric": "perplexity"})
            rows.append({"id": i, "score": round(20 + shift, 3), "metric": "taste"})
        return table(tmp_path / name, rows)

    result = compare(write("a.csv", 0.0), write("b.csv", 0.2))
    found = {c.name: (c.unit, c.higher_is_better) for c in result.comparisons}
    assert found == {"f1": ("f1", True), "perplexity": ("perplexity", False), "taste": ("taste", True)}
    assert "table/taste: a higher taste is assumed to be better." in result.notes
    assert not any("f1 is taken" in note or "perplexity is taken" in note for note in result.notes)


@pytest.mark.parametrize(
    ("metric", "higher", "noted"),
    [
        *((name, False, False) for name in ("bpb", "cross_entropy", "mae", "rmse", "edit_distance", "toxicity")),
        *((name, False, False) for name in ("hallucination_rate", "false_positive_rate", "failure_rate")),
        *((name, True, True) for name in ("attack_success_rate", "refusal_rate", "win_rate", "cost")),
        *(
            (name, True, False)
            for name in ("accuracy", "acc_norm", "exact_match", "pass@1", "error_detection_accuracy")
        ),
        ("no_hallucination_rate", True, True),
    ],
)
def test_a_direction_is_known_by_name_or_said_to_be_assumed(tmp_path, metric, higher, noted):
    rows = [{**row, "metric": metric} for row in right_or_wrong(0)]
    result = compare(table(tmp_path / "a.csv", rows), table(tmp_path / "b.csv", rows))
    [c] = result.comparisons
    assert c.higher_is_better is higher
    assert (f"table/{metric}: a higher {metric} is assumed to be better." in result.notes) is noted


def test_a_standard_error_is_not_a_score(tmp_path):
    rows = []
    for row in right_or_wrong(0):
        rows += [{**row, "metric": "acc"}, {**row, "metric": "acc_stderr"}]
    result = compare(table(tmp_path / "a.csv", rows), table(tmp_path / "b.csv", rows))
    assert [c.name for c in result.comparisons] == ["acc"]
    assert "a: acc_stderr is not read: it is a standard error, not a score." in result.notes
    with pytest.raises(DataError, match="expected scores, got only standard errors"):
        read(table(tmp_path / "c.csv", rows[1::2]))


def test_columns_that_are_not_read_are_named(tmp_path):
    rows = [{**row, "temperature": 0, "Seed": 1} for row in right_or_wrong(0)]
    result = compare(table(tmp_path / "a.csv", rows), table(tmp_path / "b.csv", right_or_wrong(0)))
    assert result.notes[0] == "a: columns that are not read: temperature, Seed."


def test_a_page_shows_question_answer_outputs_and_categories(tmp_path):
    from holdfast.cli.main import main

    def write(name: str, scores: list[int], said: str) -> Path:
        rows = []
        for number, score in enumerate(scores):
            subject = "law" if number % 2 else "art"
            rows.append(
                {
                    "id": number,
                    "score": score,
                    "category": subject,
                    "question": f"What is thing {number}?",
                    "output": f"{said} {number}",
                    "answer": "a lamp",
                }
            )
        return table(tmp_path / name, rows)

    pair = write("a.csv", [1, 1, 0, 1] * 5, "a lamp"), write("b.csv", [1, 0, 0, 1] * 5, "a shoe")
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, pair), "--html", str(page)]) == 0
    text = page.read_text()
    for part in ("What is thing 1?", "a lamp 1", "a shoe 1", "score, by subject", "law"):
        assert part in text


# ------------------------------------------------------------------------------------------------------------ clusters


def test_equal_clusters_of_equal_rows_are_one_sample_each(tmp_path):
    first, second = right_or_wrong(0, 25), right_or_wrong(1, 25)

    def tries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "cluster": row["id"]} for row in rows for _ in range(4)]

    [single] = compare(table(tmp_path / "a.csv", first), table(tmp_path / "b.csv", second)).comparisons
    result = compare(table(tmp_path / "c.csv", tries(first)), table(tmp_path / "d.csv", tries(second)))
    [clustered] = result.comparisons
    assert (clustered.n, clustered.p_value, clustered.interval) == (25, single.p_value, single.interval)
    assert "table/score: 100 samples in 25 clusters: intervals" in "".join(result.notes)


def test_a_figure_is_that_of_all_rows_where_clusters_differ_in_size(tmp_path):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, 40)

    def write(name: str) -> Path:
        rows = []
        for cluster, size in enumerate(sizes):
            level = rng.random()
            for number in range(size):
                score = int(rng.random() < level)
                rows.append({"id": f"{cluster}-{number}", "score": score, "cluster": cluster})
        return table(tmp_path / name, rows)

    def scores(path: Path) -> np.ndarray:
        return np.array([row["score"] for row in read(path)[0].entries[0].rows])

    pair = write("a.csv"), write("b.csv")
    [c] = compare(*pair).comparisons
    before, after = map(scores, pair)
    assert (c.before, c.after) == pytest.approx((before.mean(), after.mean()))
    groups = np.repeat(np.arange(40), sizes)
    moves = np.bincount(groups, after - before - (after - before).mean()) / len(before)
    assert c.standard_error == pytest.approx(np.sqrt((moves**2).sum()), rel=0.03)
    assert c.n == 40


def test_a_sample_in_another_cluster_does_not_pair(tmp_path):
    rows = [{**row, "cluster": number // 2} for number, row in enumerate(right_or_wrong(0))]
    other = [*rows[:-1], {**rows[-1], "cluster": 0}]
    with pytest.raises(DataError, match=r"1 of 60 samples changed .*now in another cluster"):
        compare(table(tmp_path / "a.csv", rows), table(tmp_path / "b.csv", other))


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,score\na,1\n", r"columns id and score, separated by commas, semicolons, tabs; got 'name,score'"),
        ("", r"expected a header"),
        ("id,score\n", r"expected one row per sample under the header, got none"),
        ("id,score\na,1\nb,\n", r"line 3: expected a value in the column score, got none"),
        ("id,score\na,1\n,1\n", r"line 3: expected a value in the column id, got none"),
        ("id,score\na,good\n", r"line 2: expected a number for score, got 'good' \(str\)"),
        ("id;score\na;0,5\n", r"line 2: expected a number for score, got '0,5'"),
        ("id,score,metric\na,57,accuracy\n", r"accuracy between 0 and 1, because it is a share, got 57"),
        ("id,score\na,1\na,0\nb,1\nb,1\n", r"got 2 ids several times: a, b"),
        ("id,score,cluster\na,1,x\na,0,y\n", r"got 1 ids several times: a"),
        ("id,score\na,1,2\n", r"line 2: expected 2 cells \(id, score\), got 3"),
        ('id,score\n"a,1\n', r"line 2: .*Check its quotes"),
        ("id,score,score\na,1,2\n", r"expected a different name for each column"),
        ("id,score,Score\na,1,2\n", r"expected one column score, got 2"),
    ],
)
def test_tables_that_are_wrong(tmp_path, text, said):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read(path)


def test_rows_of_json_that_are_wrong(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "score": "0.5"}\n')
    with pytest.raises(DataError, match=r"row 1: expected a number for score, got '0.5' \(str\)"):
        read(path)
    path.write_text('{"id": 1, "value": 0.5}\n')
    with pytest.raises(DataError, match="expected the columns id and score, got id, value"):
        read(path)


def test_a_table_that_is_no_utf8_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("id,score\nä,1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"expected UTF-8 .*Save it as UTF-8"):
        read(path)


@pytest.mark.parametrize("scale", [100, -1], ids=["percent", "negative"])
@pytest.mark.parametrize("swapped", [False, True], ids=["after", "before"])
def test_shares_are_not_compared_with_scores_on_another_scale(tmp_path, scale, swapped):
    other = [{**row, "score": scale * row["score"]} for row in right_or_wrong(1)]
    files = [table(tmp_path / "shares.csv", right_or_wrong(0)), table(tmp_path / "other.csv", other)]
    with pytest.raises(
        DataError, match=r"score is a share in \[0, 1\] for one model, and below 0 or above 1 .*Make it comparable"
    ):
        compare(*(files[::-1] if swapped else files))


@pytest.mark.parametrize("after", [0.5, 0], ids=["parts of a point", "all 0"])
def test_shares_are_compared_with_every_score_that_may_be_one(tmp_path, after):
    other = [{**row, "score": after} for row in right_or_wrong(1)]
    result = compare(table(tmp_path / "a.csv", right_or_wrong(0)), table(tmp_path / "b.csv", other))
    [c] = result.comparisons
    assert c.after == after


def test_percentages_are_compared_with_a_model_that_scores_0_throughout(tmp_path):
    percentages = [{**row, "score": 100 * row["score"]} for row in right_or_wrong(1)]
    nothing = [{**row, "score": 0} for row in percentages]
    result = compare(table(tmp_path / "a.csv", percentages), table(tmp_path / "b.csv", nothing))
    [c] = result.comparisons
    assert c.before > 1
    assert c.after == 0


def test_nan_is_a_failure_of_the_entry(tmp_path):
    rows = right_or_wrong(0)
    broken = [{**rows[0], "score": "nan"}, *rows[1:]]
    result = compare(table(tmp_path / "a.csv", rows), table(tmp_path / "b.csv", broken))
    assert result.not_finite == ["table/score: after: 1 of 60 samples hold NaN or infinity (the first is row 1)."]


def test_questions_and_right_answers_must_be_the_same(tmp_path):
    rows = [{**row, "question": "Why?", "output": "so", "answer": "yes"} for row in right_or_wrong(0)]
    first = table(tmp_path / "a.csv", rows)
    asked = table(tmp_path / "b.csv", [{**row, "question": "Where?"} for row in rows])
    with pytest.raises(DataError, match=r"60 of 60 samples changed .*now with another prompt"):
        compare(first, asked)
    marked = table(tmp_path / "c.csv", [{**row, "answer": "no"} for row in rows])
    with pytest.raises(DataError, match=r"60 of 60 samples changed .*now with another right answer"):
        compare(first, marked)


def test_a_table_is_known_by_its_suffix(tmp_path):
    from holdfast.evaluation.foreign.registry import reader_of

    assert reader_of(table(tmp_path / "a.csv", right_or_wrong(0))).tool == "a table"
    assert reader_of(tmp_path) is None
