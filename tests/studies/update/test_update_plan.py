"""The models of an update."""

from __future__ import annotations

import pytest
import yaml

from holdfast.studies.update.plan import UpdateConfig
from holdfast.support.token_counts import read_tokens, shown_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("100M", 100_000_000),
        ("1B", 10**9),
        ("1.5k", 1500),
        (700, 700),
        ("2_000", 2000),
        ("5e6", 5_000_000),
        ("0.5b", 5 * 10**8),
    ],
)
def test_tokens_as_people_write_them(text, tokens):
    assert read_tokens(text) == tokens
    assert read_tokens(shown_tokens(tokens)) == tokens


@pytest.mark.parametrize("text", ["lots", "1.5", "-3", "0", True, "10X", ""])
def test_what_is_no_number_of_tokens(text):
    with pytest.raises(ValueError, match="tokens"):
        read_tokens(text)


def test_an_update_has_one_pair(request_of):
    names = [m.name for m in UpdateConfig.read(request_of(tokens="1k", continued_instruct=True)).models()]
    assert names == ["base", "instruct", "base-1k", "instruct-1k", "base-1k-residual"]
    assert [m.name for m in UpdateConfig.read(request_of()).models()] == [
        "base",
        "instruct",
        "base-new",
        "base-new-residual",
    ]


def test_the_resolved_configuration_is_one_itself(request_of):
    config = UpdateConfig.read(request_of(after="2024-01-01", scale=0.5))
    again = UpdateConfig.read(yaml.safe_load(yaml.safe_dump(config.resolved)))
    assert again.differences(config.resolved) == []
    assert again.request.scales == (0.5,)
