"""Replay: the fraction is reached, no train row is lost or moved past another, equal seeds give equal mixtures."""

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.mixing import mix_replay, mix_tasks
from holdfast.errors import ConfigError, DataError


def tokens(lengths, start):
    """Rows of these lengths; the first token says which row it is."""
    ids = [[start + i] * n for i, n in enumerate(lengths)]
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": ids, "extra": ["x"] * len(ids)})


REPLAY = 1_000_000


@settings(max_examples=60, deadline=None)
@given(
    train=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    replay=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    fraction=st.floats(0.001, 0.9),
    seed=st.integers(0, 2**32),
    unit=st.sampled_from(["tokens", "examples"]),
)
def test_laws_of_a_mixture(train, replay, fraction, seed, unit):
    mixed, info = mix_replay(tokens(train, 0), tokens(replay, REPLAY), fraction=fraction, seed=seed, unit=unit)
    ids = mixed["input_ids"][:]
    first = [row[0] for row in ids]
    assert mixed.column_names == ["input_ids", "labels"]
    assert mixed["labels"][:] == ids

    assert [i for i in first if i < REPLAY] == list(range(len(train))), "all train rows, in their order"
    assert sum(len(row) for row, i in zip(ids, first, strict=True) if i < REPLAY) == sum(train) == info.train_tokens
    taken = [i - REPLAY for i in first if i >= REPLAY]
    assert len(taken) == info.replay_examples
    assert sum(replay[i] for i in taken) == info.replay_tokens
    counts = np.bincount(taken, minlength=len(replay))
    assert counts.max() - counts.min() <= 1, "no row again before every row was taken"
    assert info.repeated == sum(max(0, c - 1) for c in counts)

    amount, target = (info.replay_tokens, sum(train)) if unit == "tokens" else (info.replay_examples, len(train))
    target *= fraction / (1 - fraction)
    row = max(replay) if unit == "tokens" else 1
    assert abs(amount - target) <= row / 2 + 1e-6 or info.replay_examples == 1
    again, same = mix_replay(tokens(train, 0), tokens(replay, REPLAY), fraction=fraction, seed=seed, unit=unit)
    assert again["input_ids"][:] == ids
    assert same == info


def test_seeds_decide_rows_and_places():
    train, replay = tokens([5] * 200, 0), tokens([5] * 200, REPLAY)
    one, two = (mix_replay(train, replay, fraction=0.3, seed=s)[0]["input_ids"][:] for s in (1, 2))
    assert one != two
    assert {r[0] for r in one} != {r[0] for r in two}, "other rows"
    assert [r[0] < REPLAY for r in one] != [r[0] < REPLAY for r in two], "at other places"


def test_replay_is_spread_evenly():
    mixed, info = mix_replay(tokens([4] * 4000, 0), tokens([4] * 4000, REPLAY), fraction=0.25, seed=0)
    assert info.replay_tokens / (info.train_tokens + info.replay_tokens) == pytest.approx(0.25, abs=1e-3)
    is_replay = np.array([row[0] >= REPLAY for row in mixed["input_ids"][:]])
    shares = [part.mean() for part in np.array_split(is_replay, 8)]
    assert all(abs(share - 0.25) < 0.08 for share in shares), shares  # 0.08 is 4.8 standard deviations


WAYS = {
    "replay": lambda a, b, f: mix_replay(a, b, fraction=f, seed=0),
    "multitask": lambda a, b, f: mix_tasks(a, b, share=f, seed=0),
}


@pytest.mark.parametrize(
    ("way", "wrong", "expected"),
    [
        *(("replay", f, r"expected a number of at least 0 and below 1") for f in (-0.1, 1.0, 10, float("nan"))),
        *(("multitask", f, r"expected a number from 0 to 1 .*got") for f in (-0.1, 1.5)),
    ],
)
def test_a_share_of_zero_is_the_very_same_object_and_others_have_bounds(way, wrong, expected):
    train = tokens([3, 4], 0)
    mixed, info = WAYS[way](train, tokens([1], REPLAY), 0.0)
    assert mixed is train
    assert (info.train_tokens, info.replay_tokens, info.replay_examples) == (7, 0, 0)
    with pytest.raises(ConfigError, match=expected):
        WAYS[way](train, tokens([1], REPLAY), wrong)


@pytest.mark.parametrize("way", WAYS)
def test_bad_data(way):
    good = tokens([1], 0)
    for train, other, explained in (
        (good, good.select([]), f"at least one row in the {way} data"),
        (
            good,
            datasets.Dataset.from_dict({"text": ["a"]}),
            rf"(?s){way} data with the columns input_ids and labels, got text",
        ),
        (good.add_column("seq_lengths", [[1]]), good, "already packed"),
    ):
        with pytest.raises(DataError, match=explained):
            WAYS[way](train, other, 0.1)
    with pytest.raises(DataError, match="without tokens"):
        mix_replay(good, tokens([0, 0], 0), fraction=0.1, seed=0)
    with pytest.raises(ConfigError, match="Did you mean 'tokens'"):
        mix_replay(good, good, fraction=0.1, seed=0, unit="token")


@pytest.mark.parametrize("share", [0.001, 0.5, 1.0])
def test_a_multitask_mixture_holds_all_train_rows_and_the_share_of_the_others(share):
    train, other = tokens(range(1, 31), 0), tokens(range(5, 25), REPLAY)
    mixed, info = mix_tasks(train, other, share=share, seed=3)
    first = [row[0] for row in mixed["input_ids"][:]]
    taken = [i - REPLAY for i in first if i >= REPLAY]
    assert [i for i in first if i < REPLAY] == list(range(30))
    assert len(taken) == len(set(taken)) == info.replay_examples == max(1, round(share * 20))
    assert (
        info.replay_tokens == sum(5 + i for i in taken)
        and info.train_tokens == sum(range(1, 31))
        and info.repeated == 0
    )
    assert mix_tasks(train, other, share=share, seed=3)[0]["input_ids"][:] == mixed["input_ids"][:]
    assert share < 0.1 or mix_tasks(train, other, share=share, seed=4)[0]["input_ids"][:] != mixed["input_ids"][:]
