"""A checkpoint's card says what changes and a fine-tuning cost it, beside its sibling, and what retention buys."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from synthetic_overtraining import overtraining

from holdfast.reports.blocks import words
from holdfast.reports.fragility_card import card_page, change_table, lead, rate_table, write_cards


def test_the_words_of_a_card() -> None:
    record = overtraining()
    told = lead(record, record.checkpoints[1])
    assert told.startswith(
        "On web: noise 0.1 costs it 0.100 nats/token (its sibling of half the tokens 0.100 nats/token)."
    )
    assert (
        "A fine-tune on reviews at 0.0001 costs it 0.600 nats/token of web (its sibling of half the tokens 0.500 "
        "nats/token) and brings 0.700 perplexity of the class of mr." in told
    )
    assert "With held at 0.0001 it costs 0.200 nats/token and brings 0.700 perplexity of the class." in told
    first = lead(record, record.checkpoints[0])
    assert "sibling" not in first and "noise 0.1 costs it 0.100 nats/token." in first


def test_what_diverged_is_no_number() -> None:
    record = overtraining()
    rates = [dataclasses.replace(r, rate=1e-4) for r in record.rates]
    told = lead(dataclasses.replace(record, rates=rates), record.checkpoints[2])
    assert "With held" not in told and "inf" not in told and "nan" not in told


def test_tables_beside_the_sibling() -> None:
    record = overtraining()
    here, sibling = record.checkpoints[1], record.checkpoints[0]
    (row,) = change_table(record, here, sibling).rows
    assert [words(c, below=" ") for c in row] == ["noise 0.1", "+0.100 [+0.050, +0.150]", "+0.100 [+0.050, +0.150]"]
    kept, target, _ = record.scored["reviews"]
    rows = [
        [words(c, below=" ") for c in row] for row in rate_table(record, here, sibling, "reviews", kept, target).rows
    ]
    assert [r[:2] for r in rows] == [
        ["direct", "1e-05"],
        ["direct", "0.0001, tuned"],
        ["held", "1e-05"],
        ["held", "0.0001, tuned"],
    ]
    assert rows[1][2].startswith("+0.600") and rows[1][3].startswith("+0.500") and rows[1][4].startswith("+0.700")
    record.scored["reviews"].append(dataclasses.replace(kept, name="code"))
    table = rate_table(record, here, sibling, "reviews", kept, target)
    assert [c.title for c in table.columns][2:5] == [
        "Cost in web, nats/token",
        f"Of {sibling.label}",
        "Cost in code, nats/token",
    ]
    assert {words(row[4], below=" ") for row in table.rows} == {""}, "not measured on these models"
    last = [
        [words(c, below=" ") for c in row]
        for row in rate_table(record, record.checkpoints[2], here, "reviews", kept, target).rows
    ]
    assert "∞ diverged" in last[3][2]


def test_a_card_for_each(tmp_path: Path) -> None:
    record = overtraining()
    paths = write_cards(tmp_path, record)
    assert [p.name for p in paths] == ["1B.html", "2B.html", "4B.html"] and all(
        p.stat().st_size > 10_000 for p in paths
    )
    nothing = dataclasses.replace(record, models=[], sensitivities=[], rates=[])
    assert not write_cards(tmp_path / "none", nothing)
    assert card_page(nothing, record.checkpoints[0]).lead == "Nothing was measured yet."
