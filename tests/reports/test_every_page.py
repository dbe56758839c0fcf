"""One law over all pages: each renders as HTML and in a terminal with the same words and figures, its tables
hold what its charts draw, text stays text, and nothing on it needs a network or a script.

A page is a function of a folder to write into and a text that a user chose; it puts the text wherever a user may name
something. A new page adds itself to `PAGES`.
"""

from __future__ import annotations

import dataclasses
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic_distances import checkpoint, llama, tensor
from synthetic_evaluations import (
    ACCURACY,
    GATES,
    TEXT,
    Pair,
    answers,
    code,
    evaluation_record,
    generation,
    multiple_choice,
)
from synthetic_evaluations import text as documents
from synthetic_runs import SOURCE_NOISE, comparison, metric_lines, perplexity, write_run
from synthetic_studies import frontier, nothing_finished
from test_along_chart import evaluation as measured_mass

import recorded
import synthetic_residuals
from claim_studies import paper_like
from holdfast.papers.claims.page import claims_page
from holdfast.papers.label_annealing.claims import check_claims
from holdfast.papers.ladder.page import ladder_page
from holdfast.papers.overtraining.page import overtraining_page
from holdfast.papers.residual.page import study_page as residual_page
from holdfast.papers.theory.page import theory_page
from holdfast.papers.theory.results import Theory, check, finding
from holdfast.records.comparison import Answer, AnsweredPrompt, Answers
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.sequence import read_sequence
from holdfast.records.stages import Along, read_stages
from holdfast.reports import blocks
from holdfast.reports.blocks import Page, plain_text
from holdfast.reports.charts import Chart, Value, plain, plotly_figure
from holdfast.reports.comparison_report import comparison_page
from holdfast.reports.distance_report import distance_page
from holdfast.reports.evaluation_report import evaluation_page
from holdfast.reports.html import render
from holdfast.reports.probe_report import probe_page
from holdfast.reports.run_figures import read_run
from holdfast.reports.run_report import run_page
from holdfast.reports.sequence_report import sequence_page
from holdfast.reports.stages_report import stages_page
from holdfast.reports.sweep_report import sweep_page
from holdfast.reports.terminal import Printer
from holdfast.reports.update_report import update_page
from holdfast.statistics.selection import select_all
from holdfast.support.files import to_jsonable

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NASTY = "<img src=x onerror=alert(1)> ``` & \"quotes\" [bold]b[/bold] 'n' </script><!-- `x` | %{y} $z$"


def committed(folder: Path, path: str, **names: str) -> Path:
    """The folder, with a committed record in it that has a text in place of each name, wherever the name stands."""
    content = (EXAMPLES / path).read_text(encoding="utf-8")
    for name, text in names.items():
        content = content.replace(name, json.dumps(text)[1:-1])
    (folder / Path(path).name).write_text(content, encoding="utf-8")
    return folder


def theory(folder: Path, text: str) -> Page:
    checks = [check(text, text, (0, 1, 1), note=text), check("sound", "a = b", (1, 1, 1))]
    findings = [finding(text, text, [0.5, 0.6]), finding("one seed", text, [2.0])]
    words = {"title": text, "source": text, "equations": text, "problems": text}
    return theory_page(Theory(**words, seeds=2, checks=checks, findings=findings))


def probed(folder: Path, text: str) -> Page:
    return probe_page(recorded.probe(step=text, remark=text))


def study(folder: Path, text: str) -> Page:
    whole = frontier(name=text, notes=[text], config={text: text}, sampler=text, storage=text, hardware={"cpu": text})
    trials = [dataclasses.replace(t, label=f"{t.label} {text}", reason=t.reason and text) for t in whole.trials]
    whole = dataclasses.replace(whole, trials=trials)
    return sweep_page(whole, folder, selections=select_all(whole), command=text, config_yaml=text)


def unfinished(folder: Path, text: str) -> Page:
    return sweep_page(dataclasses.replace(nothing_finished(), name=text), folder, selections=[])


def claims(folder: Path, text: str) -> Page:
    checked = [claim.to_json() for claim in check_claims({"math": None, "code": paper_like()})]
    checked[0] |= {"text": text, "parts": [text], "paper": text}
    shared = {"seeds": [0], "trials": 8, "learn": text, "keep": text}
    studies = {
        "math": {"title": text, "status": "not run", "report": None, **shared},
        "code": {"title": "code", "status": "finished", "report": "code/report.html", **shared},
    }
    made_with = {"versions": {"torch": text}, "hardware": {"cpu": text}, "created": "2026-01-02"}
    return claims_page(to_jsonable({"paper": text, "size": "", "studies": studies, "claims": checked, **made_with}))


def update(folder: Path, text: str) -> Page:
    record = synthetic_residuals.update(folder, name=text, notes=[text], config={text: text}, versions={"torch": text})
    return update_page(synthetic_residuals.with_state(record, "result", label=text), folder)


def residual_study(folder: Path, text: str) -> Page:
    record = synthetic_residuals.study(folder, seeds=(0, 1), name=text)
    return residual_page(
        synthetic_residuals.with_state(record, "l3-base", label=text, state="failed", reason=text), folder
    )


def run(folder: Path, text: str) -> Page:
    named = {
        "name": text,
        "status": "failed",
        "error": text,
        "stage": text,
        "notes": [text],
        "retention": [{"method": text, text: text}],
    }
    tables = {
        "config": {text: text},
        "versions": {text: text},
        "hardware": {text: text},
        "model": {"name": text},
        "data": {"name": text},
    }
    measured = [
        comparison(name=text, unit=text, metric=text, test=text),
        comparison(suite=text),
        comparison(**SOURCE_NOISE),
    ]
    lines = [
        *metric_lines(30),
        {"step": 160, "eval_loss": 3.0, "eval_kl": 0.1, text: 1.0, "budget_constraint": 0.1, "budget_limit": 0.2},
    ]
    return run_page(read_run(write_run(folder / "run", comparisons=measured, metrics=lines, **named, **tables)))


def run_unfinished(folder: Path, text: str) -> Page:
    nothing: dict[str, Any] = {
        "comparisons": [],
        "metrics": [],
        "distance": [],
        "training": {},
        "retention": [],
        "notes": [],
    }
    found = write_run(folder / "run", status="interrupted", name=text, stage="prepare", **nothing)
    found.evaluated("start").write(perplexity("keep", text, 2.9, 50), [])
    return run_page(read_run(found))


def pair_of(folder: Path, text: str) -> Pair:
    """Two models on an entry of every kind, named and described by the text."""
    sides = multiple_choice("x", 60, 0.8, 0.3)
    for rows in sides:
        for i, r in enumerate(rows):
            groups = {"task": f"{text} {i % 3}", "category": f"{text} {i % 2}"}
            r.update({"question": text, "choices": [text] * 4, **groups})
    pair = Pair(folder, ("a", "b"))
    pair.add(text, text, "task", sides, ACCURACY, settings={text: text}, model={"name": text, "hash": text})
    generated = generation("g", 40, 0.9, 0.2), {"exact_match,strict-match": ("exact_match", True)}
    pair.add("g", "g", "task", *generated, versions={text: text}).add(
        "q", text, "answers", answers("q", 60, 0.5, 0.6), ACCURACY
    )
    return pair.add("g", "code", "code", code("c", 40, 0.4, 0.6), {"pass@1": ("pass@1", True)}).add(
        "keep", text, "perplexity", documents("p", 40, 2.9, 0.03), TEXT
    )


def comparing(folder: Path, text: str) -> Page:
    changes = dict.fromkeys(("rule", "suite", "name", "metric", "failed", "unit", "outcome"), text)
    gates = [dataclasses.replace(GATES[0], why="not finite", **changes), GATES[1]]
    found = pair_of(folder, text)
    return comparison_page(found.result(labels=(text, f"{text} b"), gates=gates, unmatched=[text]))


def asked(folder: Path, text: str) -> Page:
    """Own prompts, answered by two models of which nothing was measured."""
    answer = Answer(text=text, tokens=12, ended=True, open_thought=False)
    cut = Answer(text=f"{text}\n{text} again", tokens=256, ended=False, open_thought=False)
    thinks = Answer(text="", tokens=256, ended=False, open_thought=True)
    messages = [{"role": "user", "content": text}]
    turns = [{"role": text, "content": text}, *messages]
    prompts = [
        AnsweredPrompt(messages=messages, before=answer, after=cut),
        AnsweredPrompt(messages=turns, before=answer, after=answer),
        AnsweredPrompt(messages=messages, before=answer, after=thinks),
    ]
    found = Answers(file=text, max_new_tokens=256, chat_template=True, prompts=prompts, notes=[], not_finite=[])
    pair = Pair(folder, ("a", "b"))
    return comparison_page(pair.result(labels=(text, f"{text} b"), answers=found, notes=[text]))


def nothing_compared(folder: Path, text: str) -> Page:
    return comparison_page(pair_of(folder, text).result(comparisons=[], unmatched=[text]))


def evaluated(folder: Path, text: str) -> Page:
    found = pair_of(folder, text)
    changes = {
        "versions": {text: text},
        "hardware": {text: text},
        "plan": {text: text},
        "suites": [text],
        "status": text,
    }
    asked = evaluation_record([text, f"{text} 2"], **changes)
    return evaluation_page(asked, [found.before, found.after], comparisons={f"{text} 2": found.comparisons})


def nothing_evaluated(folder: Path, text: str) -> Page:
    return evaluation_page(evaluation_record([text], status="running"), [EvaluationFolder(folder / "none")])


def distances_of(folder: Path, text: str) -> Page:
    tensors = [*llama(2), tensor(text, dtypes=(text, text)), tensor(f"h.0.{text}", relative=math.inf, cosine=math.nan)]
    found = checkpoint(tensors, start=text, result=f"{text} 2", notes=(text,))
    return distance_page(found)


def in_sequence(folder: Path, text: str) -> Page:
    record = read_sequence(committed(folder, "real_sequence/sequence.json", math=text, code=f"{text} 2"))
    models = [dataclasses.replace(record.models[0], label=text, state="failed", reason=text), *record.models[1:]]
    arms = [record.arms[0], *(dataclasses.replace(a, arm=f"{text} {i}") for i, a in enumerate(record.arms[1:]))]
    return sequence_page(dataclasses.replace(record, models=models, arms=arms, notes=[text], config={text: text}))


def in_stages(folder: Path, text: str) -> Page:
    record = read_stages(committed(folder, "real_piqa/stages.json", piqa=text))
    config = {**record.config, "base": text, text: text}
    along = {"direct": [Along(step=k, evaluations=[measured_mass(0.1 * k, name=text)]) for k in range(3)]}
    verdicts = [dataclasses.replace(v, reason=text) for v in record.verdicts]
    models = [dataclasses.replace(record.models[1], state="failed", reason=text), *record.models]
    labels = {"checkpoints": {"direct": [text]}, "notes": [text]}
    changes = {"config": config, "along": along, "verdicts": verdicts, "models": models, **labels}
    return stages_page(dataclasses.replace(record, **changes))


def nothing_in_stages(folder: Path, text: str) -> Page:
    nothing: dict[str, Any] = {"models": [], "verdicts": [], "transitions": [], "tasks": [], "along": {}}
    record = read_stages(committed(folder, "real_piqa/stages.json"))
    return stages_page(dataclasses.replace(record, **nothing, name=text, status="running"))


def nothing_in_sequence(folder: Path, text: str) -> Page:
    record = read_sequence(committed(folder, "real_sequence/sequence.json"))
    nothing: dict[str, Any] = {"models": [], "arms": [], "tasks": {}}
    return sequence_page(dataclasses.replace(record, **nothing, name=text, status="running"))


def in_ladder(folder: Path, text: str) -> Page:
    record = recorded.ladder(web=text)
    rungs = [dataclasses.replace(r, size=text, reason=text) for r in record.rungs]
    changes = {"name": text, "notes": [text], "sizes": {text: record.sizes["1M"]}}
    return ladder_page(dataclasses.replace(record, rungs=rungs, **changes))


def nothing_in_ladder(folder: Path, text: str) -> Page:
    nothing: dict[str, Any] = {"rungs": [], "sizes": {}, "text": {}}
    return ladder_page(dataclasses.replace(recorded.ladder(), name=text, status="running", **nothing))


def in_overtraining(folder: Path, text: str) -> Page:
    record = recorded.overtraining(reviews=text, web=text)
    models = [dataclasses.replace(record.models[0], state="failed", reason=text), *record.models[1:]]
    return overtraining_page(dataclasses.replace(record, name=text, notes=[text], models=models))


def nothing_in_overtraining(folder: Path, text: str) -> Page:
    found = ("models", "rates", "turns", "growth", "shifts", "sensitivities", "trends")
    nothing: dict[str, Any] = {key: [] for key in found}
    record = recorded.overtraining()
    return overtraining_page(dataclasses.replace(record, **nothing, name=text, status="running", scored={}))


PAGES: dict[str, Callable[[Path, str], Page]] = {
    "ladder": in_ladder,
    "ladder, nothing trained": nothing_in_ladder,
    "overtraining": in_overtraining,
    "overtraining, nothing measured": nothing_in_overtraining,
    "stages": in_stages,
    "stages, nothing measured": nothing_in_stages,
    "sequence": in_sequence,
    "sequence, nothing measured": nothing_in_sequence,
    "update": update,
    "residual study": residual_study,
    "theory": theory,
    "probe of a ladder": probed,
    "study": study,
    "study, nothing finished": unfinished,
    "claims": claims,
    "run": run,
    "run, unfinished": run_unfinished,
    "comparison": comparing,
    "comparison, nothing compared": nothing_compared,
    "answers to prompts": asked,
    "evaluation": evaluated,
    "evaluation, nothing measured": nothing_evaluated,
    "distance": distances_of,
}


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return PAGES[request.param](tmp_path_factory.mktemp("page"), NASTY)


@pytest.fixture(scope="module")
def whole(page: Page) -> str:
    return render(page)


def every(found: Any) -> Iterator[Any]:
    """All blocks, those within blocks too."""
    for x in found:
        if x is not None:
            yield x
            yield from every(getattr(x, "blocks", ()))


STYLE = {"kind", "style", "tone", "tones", "form", "anchor", "link", "language", "find", "groups", "tab", "eyebrow"}
"""Fields of blocks that are not read as text."""


def texts(x: Any) -> Iterator[str]:
    """Every text of a block and of those within; of a chart its title, its table and its caption."""
    if isinstance(x, str):
        yield x
    elif isinstance(x, Chart):
        yield from texts((x.title if x.heading else None, x.table, x.caption))
    elif isinstance(x, (list, tuple)):
        yield from (text for part in x for text in texts(part))
    elif dataclasses.is_dataclass(x):
        yield from texts([getattr(x, f.name) for f in dataclasses.fields(x) if f.name not in STYLE])


def bare(text: str) -> str:
    """The letters, figures and signs of a text, without spaces and box lines."""
    return re.sub(r"[\s\u200b]", "", text)


def as_text(page: Page, *, ascii_only: bool = False, width: int = 4000) -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding="ascii" if ascii_only else "utf-8")
    Printer(Console(file=file, width=width, force_terminal=False)).show(document(page))
    file.flush()
    return buffer.getvalue().decode()


def document(page: Page) -> list[Any]:
    """The whole page as blocks, its head and foot too."""
    status = f" ({page.status[0]})" if page.status else ""
    details, footer = (blocks.Paragraph(text, "note") if text else None for text in (page.details, page.footer))
    return [blocks.Heading(f"{page.title}{status}", 1), blocks.Paragraph(page.lead), details, *page.blocks, footer]


def body_of(text: str) -> str:
    """The page without scripts and styles."""
    return re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)


def test_the_page_and_the_terminal_have_the_same_words(page: Page, whole: str) -> None:
    shown = {"html": html.unescape(re.sub(r"<[^>]+>", "", body_of(whole))), "terminal": as_text(page)}
    for name, text_of_all in shown.items():
        found = bare(text_of_all)
        absent = [text for text in texts(dataclasses.replace(page, status=None)) if bare(text) not in found]
        assert not absent, f"{name}: {absent[:3]}"


def test_every_chart_is_drawn_of_the_rows_of_its_table(page: Page) -> None:
    number = re.compile(r"[−+-]?\d[\d,]*\.?(\d*)(e-?\d+)?")
    for chart in (x for x in every(page.blocks) if isinstance(x, Chart)):
        assert len(chart.table.rows) == len(chart.rows)
        for value in (v for row in chart.rows for v in row.values() if isinstance(v, Value) and v.text):
            found = number.match(value.text)
            if found is None or found[2]:
                continue
            digit = 10.0 ** -len(found[1])
            assert float(found[0].replace("−", "-").replace(",", "")) == pytest.approx(value.value, abs=0.51 * digit)
        drawn = plotly_figure(chart)
        assert drawn["data"], f"{chart.title} draws nothing"
        shown = [t for trace in drawn["data"] for t in trace.get("hovertext", []) if t]
        heads = [plain(plain_text(c.title)) for c in chart.columns]
        assert all(any(t.count(f"{h}: ") for h in heads) for t in shown if "<br>" in t)


def test_the_page_has_its_small_print(page: Page, whole: str) -> None:
    assert all((page.tab, page.eyebrow, page.title, page.lead, page.footer))
    assert "This page needs no network." in whole
    sections = [x.title for x in page.blocks if isinstance(x, blocks.Section)]
    assert sections and len(set(sections)) == len(sections)


def test_text_stays_text(page: Page, whole: str) -> None:
    body = body_of(whole)
    assert "<img" not in body and "<!--" not in body
    assert whole.count("<script") == whole.count("</script>")
    figures = re.search(r'id="figures">(.*?)</script>', whole, re.S)
    if figures:
        drawn = json.dumps(json.loads(figures[1]), ensure_ascii=False)
        assert "<img" not in drawn and "$z$" not in drawn and "%{y} $" not in drawn
    assert "[bold]b[/bold]" in as_text(page)
    assert as_text(page, ascii_only=True).isascii()


def test_nothing_on_the_page_needs_a_network_or_a_script(page: Page, whole: str) -> None:
    body = body_of(whole)
    assert "default-src &#x27;none&#x27;" in whole
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)(?:[a-z]+:|//)""", body)
    assert not re.search(r"https?://", body)
    plots = re.findall(r"<figure.*?</figure>", body, re.S)
    charts = sum(isinstance(x, Chart) for x in every(page.blocks))
    assert len(plots) == charts == body.count("data-figure=")
    assert all('<details class="numbers">' in p and "<tbody>" in p for p in plots)
    assert ("JavaScript is off" in body) == bool(charts) == ('id="plotly-gzip"' in whole)
