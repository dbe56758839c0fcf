"""Rows of pairs: which are taken, and what is said of those that are not."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from holdfast.data.pairs import read_judged, read_pairs
from holdfast.errors import DataError

USER = {"role": "user", "content": "Is it?"}
YES, NO = {"role": "assistant", "content": "Yes."}, {"role": "assistant", "content": "No."}
TEXT = {"prompt": "Is it? ", "chosen": "Yes.", "rejected": "No."}


@pytest.mark.parametrize(
    "row",
    [
        TEXT,
        {"chosen": "Is it? Yes.", "rejected": "Is it? No."},
        {"prompt": [USER], "chosen": [YES], "rejected": [NO]},
        {"chosen": [USER, YES], "rejected": [USER, NO]},
    ],
)
def test_pairs_that_trl_takes_are_taken_as_they_are(row: dict[str, Any]) -> None:
    not_read: dict[str, int | None] = {}
    rows = read_pairs(Dataset.from_list([{**row, "score": 1.0}]), not_read=not_read)
    assert rows.to_list() == [row] and not_read == {"score": 1}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**TEXT, "chosen": ""}, "row 2: 'chosen' is empty"),
        ({**TEXT, "rejected": None}, "row 2: 'rejected' is empty"),
        ({**TEXT, "prompt": ""}, "row 2: 'prompt' is empty"),
    ],
)
def test_pairs_a_row_without_a_part_is_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        read_pairs(Dataset.from_list([TEXT, row, TEXT]))
    assert said in str(caught.value) and "1 of 3 rows cannot be used as pairs" in str(caught.value)


def test_pairs_conversations_have_to_end_with_an_answer() -> None:
    rows = Dataset.from_list([{"chosen": [YES, USER], "rejected": [USER, NO]}])
    with pytest.raises(DataError, match="have to end with a message of the assistant"):
        read_pairs(rows)


def test_pairs_other_columns_and_equal_completions_are_refused() -> None:
    with pytest.raises(DataError, match=r"got prompt, choosen, rejected; chosen is missing\. Did you mean 'choosen'\?"):
        read_pairs(Dataset.from_list([{"prompt": "a", "choosen": "b", "rejected": "c"}]))
    with pytest.raises(DataError, match="each of the 2 rows has the same text in both"):
        read_pairs(Dataset.from_list([{**TEXT, "rejected": "Yes."}] * 2))
    with pytest.raises(DataError, match="at least one pair"):
        read_pairs(Dataset.from_list([TEXT]).select([]))


JUDGED = {"prompt": "Is it? ", "completion": "Yes.", "label": True}


@pytest.mark.parametrize("row", [JUDGED, {"prompt": [USER], "completion": [NO], "label": False}])
def test_pairs_judged_answers_are_taken_as_they_are(row: dict[str, Any]) -> None:
    not_read: dict[str, int | None] = {}
    rows = read_judged(Dataset.from_list([{**row, "rater": 3}]), not_read=not_read)
    assert rows.to_list() == [row] and not_read == {"rater": 1}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**JUDGED, "completion": ""}, "row 2: 'completion' is empty"),
        ({**JUDGED, "prompt": None}, "row 2: 'prompt' is empty"),
        ({**JUDGED, "label": None}, "row 2: 'label' is not true or false: None"),
    ],
)
def test_pairs_a_judged_answer_without_a_part_is_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        read_judged(Dataset.from_list([JUDGED, row, JUDGED]))
    assert said in str(caught.value) and "1 of 3 rows cannot be used as judged answers" in str(caught.value)


def test_pairs_other_columns_are_no_judged_answers() -> None:
    with pytest.raises(DataError, match=r"label is missing\. Did you mean 'lable'\?"):
        read_judged(Dataset.from_list([{"prompt": "a", "completion": "b", "lable": True}]))
    with pytest.raises(DataError, match=r"For answers without a label use trainer: sft\."):
        read_judged(Dataset.from_list([{"prompt": "a", "completion": "b"}]))
    with pytest.raises(DataError, match=r"For pairs of chosen and rejected use trainer: dpo\."):
        read_judged(Dataset.from_list([TEXT]))
    with pytest.raises(DataError, match="'label' is not true or false: 1"):
        read_judged(Dataset.from_list([{**JUDGED, "label": 1}]))
    with pytest.raises(DataError, match="'completion' has to end with a message of the assistant"):
        read_judged(Dataset.from_list([{"prompt": [USER], "completion": [USER], "label": True}]))
