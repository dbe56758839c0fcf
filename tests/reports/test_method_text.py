"""Method lines name files by their last part."""

from holdfast.reports.figures import method_text


def test_paths_are_shown_by_their_last_part():
    text = method_text([{"method": "replay", "data": "/somebody/else/old.jsonl", "fraction": 0.1}])
    assert "old.jsonl" in text
    assert "somebody" not in text


def test_hub_ids_stay_whole():
    assert "org/data" in method_text([{"method": "replay", "data": "org/data", "fraction": 0.1}])
