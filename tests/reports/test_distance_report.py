"""The page of a distance: figures of the record, rows with the architecture's names, a table that sorts."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_distances import LLAMA, checkpoint, llama, tensor
from synthetic_runs import browse, chromium
from test_report_browser import console_of
from test_report_pages import figures_of, words_of

from holdfast.checkpoints.distance import CheckpointDistance, TensorDistance
from holdfast.errors import DataError
from holdfast.records.run import LayerDistance
from holdfast.reports.distance_report import write_distance_report
from holdfast.support.files import read_json, to_jsonable, write_json

VIEWS = ("Relative norm", "Cosine", "Signs kept", "L2 norm")
GPT2 = ("attn.c_attn", "attn.c_proj", "ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj")
NEOX = (
    "attention.dense",
    "attention.query_key_value",
    "input_layernorm",
    "mlp.dense_4h_to_h",
    "mlp.dense_h_to_4h",
    "post_attention_layernorm",
)


def write(path: Path, *tensors: TensorDistance, **changes: Any) -> str:
    return write_distance_report(to_jsonable(checkpoint(tensors, **changes)), path / "d.html").read_text(
        encoding="utf-8"
    )


def heat(page: str, view: int = 0) -> dict[str, Any]:
    """One of the four heat maps."""
    figures = [f for f in figures_of(page) if f["data"][0]["type"] == "heatmap"]
    assert len(figures) == len(VIEWS)
    return figures[view]


def labels_of(page: str) -> list[str]:
    return heat(page)["layout"]["yaxis"]["ticktext"]


def table_of(page: str) -> dict[str, list[float]]:
    """Tensor name -> relative, L2, cosine, signs kept, as the table holds them for sorting."""
    part = page[page.index('class="panel tensors"') :]
    rows = re.findall(r"<tr><th data-label=\"Tensor\"[^>]*>([^<]*)<span.*?</tr>", part, re.S)
    values = [
        re.findall(r'<data value="([^"]+)">', row) for row in re.findall(r"<tr><th data-label.*?</tr>", part, re.S)
    ]
    return {name: [float(v) for v in row] for name, row in zip(rows, values, strict=True)}


# ------------------------------------------------------------------------------------------------------------ figures


def test_the_table_holds_every_tensor_with_the_records_figures_the_largest_move_first(tmp_path) -> None:
    tensors = llama()
    table = table_of(write(tmp_path, *tensors))
    assert set(table) == {t.name for t in tensors}
    for t in tensors:
        assert table[t.name] == pytest.approx([t.relative, t.l2, t.cosine, t.sign_agreement], rel=1e-8)
    moves = [row[0] for row in table.values()]
    assert moves == sorted(moves, reverse=True)


def test_headline_figures_are_those_of_the_total(tmp_path) -> None:
    record = checkpoint(
        llama(),
        layers=(
            *checkpoint(llama()).layers[:-1],
            LayerDistance(
                layer="total",
                parameters=738_248_704,
                l2=27.20017,
                relative=0.0500546,
                cosine=0.99874961,
                sign_agreement=0.98409732,
            ),
        ),
    )
    page = write_distance_report(to_jsonable(record), tmp_path / "d.html").read_text()
    found = dict(re.findall(r'<p class="label">(.*?)</p><p class="figure">(.*?)</p>', page))
    largest = max(record.layers[:-1], key=lambda d: d.relative)
    assert found == {
        "Relative norm": "5.01 %",
        "L2 norm": "27.2",
        "Cosine": "0.998750",
        "Signs kept": "98.41 %",
        "Parameters compared": "738 M",
        "Largest move of a layer": f"{100 * largest.relative:.3g} %",
    }
    assert "From base to tuned the weights moved by 5.01 % of their norm" in page


def test_cells_of_the_heat_maps_are_the_tensors(tmp_path) -> None:
    tensors = {t.name: t for t in llama()}
    page = write(tmp_path, *tensors.values())
    expected = (lambda t: 100 * t.relative, lambda t: 1 - t.cosine, lambda t: 100 * t.sign_agreement, lambda t: t.l2)
    for view, figure in enumerate(expected):
        top, blocks, bottom = heat(page, view)["data"]
        assert top["z"] == [[pytest.approx(figure(tensors["model.embed_tokens.weight"]), rel=1e-5)]]
        assert bottom["z"] == [
            [pytest.approx(figure(tensors[n]), rel=1e-5)] for n in ("model.norm.weight", "lm_head.weight")
        ]
        for kind, row in zip(LLAMA, blocks["z"], strict=True):
            assert row == pytest.approx(
                [figure(tensors[f"model.layers.{n}.{kind}.weight"]) for n in range(3)], rel=1e-5
            )
        assert len(blocks["x"]) == 4
        assert (top["x"][0], top["x"][-1]) == (blocks["x"][0], blocks["x"][-1])
        assert "q_proj" in blocks["text"][0][1] and "layer 1" in blocks["text"][0][1]


def test_a_tensor_that_is_in_one_layer_only_leaves_gaps(tmp_path) -> None:
    page = write(tmp_path, *llama(), tensor("model.layers.1.self_attn.q_proj.bias"))
    row = heat(page)["data"][1]["z"][-1]
    assert labels_of(page)[-3] == "q_proj.bias"
    assert row[0] is None and row[2] is None and row[1] is not None


def test_figures_over_orders_of_magnitude_get_a_logarithmic_colour_axis(tmp_path) -> None:
    moves = [0.0, 1e-5, 1e-3, 1e-2]
    page = write(tmp_path, *(tensor(f"h.{n}.mlp.c_fc.weight", m) for n, m in enumerate(moves)))
    blocks, axis = heat(page)["data"][0], heat(page)["layout"]["coloraxis"]
    assert blocks["z"][0] == pytest.approx(
        [-3, -3, -1, 0], abs=1e-5
    )  # log10 of the percentage; what did not move has the weakest colour
    assert (axis["cmin"], axis["cmax"]) == pytest.approx((-3, 0))
    assert axis["colorbar"]["ticktext"] == ["0.001", "0.01", "0.1", "1"]
    assert axis["colorbar"]["tickvals"] == pytest.approx([-3, -2, -1, 0], abs=1e-9)


@pytest.mark.parametrize("view", range(4))
def test_the_strongest_colour_is_the_furthest_and_what_has_no_figure_is_a_gap(tmp_path, view) -> None:
    odd = [
        tensor("h.3.mlp.c_fc.weight", relative=math.inf, cosine=math.nan),
        tensor("h.4.mlp.c_fc.weight", relative=math.nan, cosine=math.nan),
    ]
    page = write(tmp_path, *(tensor(f"h.{n}.mlp.c_fc.weight", 0.1 + n / 10) for n in range(3)), *odd)
    figure = heat(page, view)
    axis, row = figure["layout"]["coloraxis"], figure["data"][0]["z"][0]
    assert axis["cmin"] < axis["cmax"]
    furthest = axis["colorscale"][0 if view == 2 else -1]
    assert furthest[1] == "var(--heat-3)"
    assert row[2] == pytest.approx(axis["cmin"] if view == 2 else axis["cmax"], rel=1e-5)
    assert (row[3] is None) == (view == 1)
    assert (row[4] is None) == (view in (0, 1))
    if view == 0:
        assert row[3] == row[2]
        assert "Where the start is zero and the result is not, the strongest colour." in page


def test_figures_that_hardly_differ_still_show_where(tmp_path) -> None:
    page = write(tmp_path, *(tensor(f"h.{n}.mlp.c_fc.weight", 0.05 + n / 1e4) for n in range(4)))
    axis = heat(page)["layout"]["coloraxis"]
    assert (axis["cmin"], axis["cmax"]) == pytest.approx((5, 5.03))


def test_bars_are_the_layers(tmp_path) -> None:
    record = checkpoint(llama())
    page = write_distance_report(to_jsonable(record), tmp_path / "d.html").read_text()
    bars = next(d for f in figures_of(page) for d in f["data"] if d["type"] == "bar")
    assert bars["x"] == [d.layer for d in record.layers[:-1]] == ["embed", "0", "1", "2", "norm", "head"]
    assert bars["y"] == pytest.approx([100 * d.relative for d in record.layers[:-1]])
    assert "Signs kept: 99.00 %" in bars["hovertext"][0]


# -------------------------------------------------------------------------------------------------------------- names


def rows_named(
    kinds: Sequence[str], prefix: str, outside: Sequence[str], parameters: Sequence[str] = ("weight",)
) -> list[TensorDistance]:
    names = [f"{prefix}.{n}.{kind}.{p}" for n in range(2) for kind in sorted(kinds) for p in parameters]
    return [tensor(name) for name in (*names, *outside)]


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (
            rows_named(LLAMA, "model.layers", ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]),
            [
                "embed_tokens",
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "gate_proj",
                "up_proj",
                "down_proj",
                "input_layernorm",
                "post_attention_norm",
                "norm",
                "lm_head",
            ],
        ),
        (
            rows_named(
                GPT2,
                "transformer.h",
                ["transformer.wpe.weight", "transformer.wte.weight", "transformer.ln_f.weight"],
                ("weight", "bias"),
            ),
            [
                "wpe",
                "wte",
                "c_attn",
                "attn.c_proj",
                "c_fc",
                "mlp.c_proj",
                "ln_1",
                "ln_2",
                "c_attn.bias",
                "attn.c_proj.bias",
                "c_fc.bias",
                "mlp.c_proj.bias",
                "ln_1.bias",
                "ln_2.bias",
                "ln_f",
            ],
        ),
        (
            rows_named(
                NEOX,
                "gpt_neox.layers",
                ["gpt_neox.embed_in.weight", "embed_out.weight", "gpt_neox.final_layer_norm.weight"],
            ),
            [
                "embed_in",
                "query_key_value",
                "dense",
                "dense_h_to_4h",
                "dense_4h_to_h",
                "input_layernorm",
                "post_attention_norm",
                "final_layer_norm",
                "embed_out",
            ],
        ),
        (
            rows_named(["layer.0.SelfAttention.q"], "encoder.block", [])
            + rows_named(["layer.0.SelfAttention.q"], "decoder.block", []),
            ["decoder q", "encoder q"],
        ),
        ([tensor("stem.conv.weight"), tensor("conv.weight")], ["stem.conv", "conv"]),
    ],
)
def test_rows_have_the_shortest_names_that_tell_them_apart(tmp_path, tensors, expected) -> None:
    assert labels_of(write(tmp_path, *tensors)) == expected


def test_experts_of_a_layer_share_a_cell(tmp_path) -> None:
    moves = [0.01, 0.02, 0.05]
    page = write(tmp_path, *(tensor(f"model.layers.0.mlp.experts.{n}.up_proj.weight", m) for n, m in enumerate(moves)))
    assert labels_of(page) == ["up_proj"]
    assert heat(page, 0)["data"][0]["z"] == [[pytest.approx(100 * math.sqrt(sum(m * m for m in moves) / 3), rel=1e-5)]]
    assert heat(page, 3)["data"][0]["z"] == [[pytest.approx(2 * math.sqrt(sum(m * m for m in moves)), rel=1e-5)]]
    assert heat(page, 2)["data"][0]["z"] == [[pytest.approx(100 * (1 - sum(moves) / 9), rel=1e-5)]]
    assert "3 tensors" in heat(page)["data"][0]["text"][0][0]
    assert "Cells of several tensors (experts)" in page


def test_many_tensors_outside_the_layers_are_shown_by_group(tmp_path) -> None:
    page = write(tmp_path, *(tensor(f"conv{n}.weight") for n in range(40)), tensor("embed.weight"))
    assert labels_of(page) == ["embed", "other"]
    assert len(table_of(page)) == 41


@pytest.mark.parametrize(
    ("start", "result", "title"),
    [
        ("/somewhere/base", "/elsewhere/tuned/", "base → tuned"),
        ("runs/a/checkpoint-100", "runs/b/checkpoint-100", "a/checkpoint-100 → b/checkpoint-100"),
        ("c:\\models\\base", "x", "base → x"),
        (
            "/cache/models--Qwen--Qwen2.5-0.5B/snapshots/0123abcd",
            "/x/lora on /cache/models--Qwen--Qwen2.5-0.5B/snapshots/0123abcd",
            "Qwen/Qwen2.5-0.5B → lora on Qwen/Qwen2.5-0.5B",
        ),
        ("/m/same", "/m/same", "same → same"),
    ],
)
def test_checkpoints_are_called_by_their_names_not_by_whose_folder_they_lie_in(tmp_path, start, result, title) -> None:
    page = words_of(write(tmp_path, *llama(1), start=start, result=result))
    assert f"<h1>{title}</h1>" in page
    assert "/somewhere" not in page and "snapshots" not in page


# --------------------------------------------------------------------------------------------------------- the record


def test_notes_are_listed_and_pointed_to(tmp_path) -> None:
    page = write(tmp_path, *llama(1), notes=("2 tensors only in the start: a.weight, <b>.weight",))
    assert "<li>2 tensors only in the start: a.weight, &lt;b&gt;.weight</li>" in page
    assert '<a href="#notes">1 note on what was not</a>' in page and '<section id="notes">' in page
    assert "every tensor of the one is in the other" in write(tmp_path, *llama(1))


def test_equal_checkpoints_are_said_to_be_equal_and_nothing_is_drawn(tmp_path) -> None:
    page = write(tmp_path, tensor("h.0.mlp.c_fc.weight", 0.0))
    assert "base and tuned are the same: no compared parameter differs." in page
    assert 'id="figures"' not in page


def test_what_json_gives_back_makes_the_same_page(tmp_path) -> None:
    record = checkpoint([*llama(1), tensor("h.0.ln_1.bias", relative=math.inf, cosine=math.nan)])
    written = read_json(write_json(tmp_path / "d.json", record))
    plain = json.loads((tmp_path / "d.json").read_text())
    pages = [write_distance_report(r, tmp_path / "d.html").read_text() for r in (written, plain, to_jsonable(record))]
    assert pages[0] == pages[1] == pages[2]
    assert "∞" in pages[0] and "n/a" in pages[0]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(CheckpointDistance)])
def test_a_record_that_lacks_a_field_is_refused(tmp_path, field) -> None:
    record = to_jsonable(checkpoint(llama(1)))
    del record[field]
    with pytest.raises(DataError, match=rf"record of a distance .*{field}"):
        write_distance_report(record, tmp_path / "d.html")
    assert not (tmp_path / "d.html").exists()


def test_a_record_without_a_total_is_refused(tmp_path) -> None:
    record = to_jsonable(checkpoint(llama(1)))
    record["layers"].pop()
    with pytest.raises(DataError, match="total as the last layer"):
        write_distance_report(record, tmp_path / "d.html")


# -------------------------------------------------------------------------------------------------------- the browser

needs_chromium = pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    """One browser profile for the module: a fresh one costs a second a page."""
    return tmp_path_factory.mktemp("chromium")


CLICKS = """<script>
addEventListener("load", () => {
  const panel = document.querySelector(".tensors"), body = panel.querySelector("tbody"), found = {};
  const shownRows = () => [...body.rows].filter((r) => r.offsetParent !== null);
  const visible = () => shownRows().map((r) => r.cells[0].firstChild.textContent);
  const click = (title) => [...panel.querySelectorAll("thead button")].find((b) => b.textContent === title).click();
  const search = panel.querySelector("input"), more = panel.querySelector(".more");
  const type = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
  found.first = visible();
  for (const title of ["Tensor", "Relative", "L2", "Cosine", "Signs kept"]) {
    click(title); found[title] = visible()[0];
    found[`${title}, sort`] = panel.querySelector("[aria-sort]").getAttribute("aria-sort");
    click(title); found[`${title} again`] = visible()[0];
  }
  click("Relative");
  type("1 Q_PROJ"); found.filtered = visible();
  type("nothing like it"); found.none = visible();
  type(""); more.click(); found.all = visible().length; found.more = more.hidden;
  const shown = () => [...document.querySelectorAll(".stack > .panel")].map((e) => getComputedStyle(e).visibility);
  found.views = [shown()];
  document.querySelector('label[for="view-2"]').click(); found.views.push(shown());
  const pre = document.createElement("pre");
  document.body.append(Object.assign(pre, { id: "clicks", textContent: JSON.stringify(found) }));
});
</script></body>"""


@pytest.mark.slow
@needs_chromium
def test_the_table_sorts_and_filters_and_the_views_switch(tmp_path, profile) -> None:
    tensors = [
        *llama(12),
        tensor("model.layers.10.odd.weight", relative=math.nan, cosine=math.nan),
        tensor("zz.weight", relative=math.inf),
    ]
    page = write_distance_report(to_jsonable(checkpoint(tensors)), tmp_path / "d.html")
    page.write_text(CLICKS.join(page.read_text(encoding="utf-8").rsplit("</body>", 1)), encoding="utf-8")
    done = browse(page, profile, "--dump-dom")
    assert console_of(done.stderr) == []
    text = re.search(r'<pre id="clicks">(.*?)</pre>', done.stdout, re.S)
    assert text is not None
    found = json.loads(text[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    ordered = sorted((t for t in tensors if not math.isnan(t.relative)), key=lambda t: -t.relative)
    assert found["first"] == [t.name for t in ordered[:40]]
    assert found["Tensor"] == "lm_head.weight" and found["Tensor again"] == "zz.weight"
    assert (
        found["Relative"] == "zz.weight" and found["Relative again"] == ordered[-1].name
    )  # what has no figure stays last
    moved = max((t for t in tensors if not math.isnan(t.cosine)), key=lambda t: t.l2)
    assert found["L2"] in {t.name for t in tensors if t.l2 == max(u.l2 for u in tensors)}
    assert found["Cosine"] in {t.name for t in tensors if t.cosine == moved.cosine}
    assert found["Signs kept"] in {
        t.name for t in tensors if t.sign_agreement == min(u.sign_agreement for u in tensors)
    }
    assert (found["Cosine, sort"], found["L2, sort"]) == (
        "ascending",
        "descending",
    )  # the first click shows the largest moves
    assert found["filtered"] == ["model.layers.1.self_attn.q_proj.weight"]
    assert found["none"] == []
    assert found["all"] == len(tensors) and found["more"] is True
    assert found["views"] == [["visible", *["hidden"] * 3], ["hidden", "hidden", "visible", "hidden"]]
    assert done.stdout.count('class="main-svg"') >= 5
