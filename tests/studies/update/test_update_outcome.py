"""What an update's models are compared by, on evaluation folders that are written here."""

from __future__ import annotations

from pathlib import Path

from holdfast.records.residual import BASE, StudiedModel
from holdfast.studies.update.outcome import pairs_of
from synthetic_residuals import evaluation, nats, write_evaluation


def test_pairs_of_names_an_entry_that_only_one_model_has(tmp_path: Path) -> None:
    models = []
    for name, tokens, entries in (("base", 0, ("prose", "code")), ("base-600", 600, ("prose",))):
        for entry in entries:
            values = {"nats_per_token": nats(2.0)}
            found = evaluation("keep", entry, values, kind="perplexity", model=name)
            write_evaluation(tmp_path / "evaluations" / name, found)
        measured = {"evaluations": f"evaluations/{name}", "state": "complete"}
        models.append(StudiedModel(name=name, label=name, family="", start=BASE, tokens=tokens, **measured))
    _, left_out = pairs_of(models, tmp_path, confidence=0.95)
    assert [text for text in left_out if "code" in text and text.startswith("base-600 against base: ")]
