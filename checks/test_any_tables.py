"""Tables of any JSON values meet under one schema, and no value is lost."""

from __future__ import annotations

import json
import math

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from data.test_sources import json_values
from holdfast.data import arrow_cache, json_rows


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.dictionaries(st.sampled_from(["a", "b"]), json_values, min_size=1), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_any_tables_meet_under_one_schema_without_losing_values(chunks):
    tables = [json_rows.rows_table(rows) for rows in chunks]
    schema = arrow_cache.common_schema([t.schema for t in tables])
    joined = pa.concat_tables([arrow_cache.conform(t, schema) for t in tables])
    as_json = [field.name for field in schema if field.type == pa.json_()]
    loaded = [
        {k: json.loads(v) if k in as_json and v is not None else v for k, v in row.items()}
        for row in joined.to_pylist()
    ]
    for got, wanted in zip(loaded, [row for rows in chunks for row in rows], strict=True):
        assert all(covers(got.get(key), value) for key, value in wanted.items()), (got, wanted)


def covers(got, wanted) -> bool:
    """Equal, but for keys that rows with other keys have added as None, whole numbers in a column of fractions, and
    those beyond 64 bits, which are their digits."""
    if isinstance(got, str) and isinstance(wanted, int) and not -(2**63) <= wanted < 2**64:
        return got == str(wanted)
    if isinstance(wanted, dict) and isinstance(got, dict):
        return all(covers(got.get(k), v) for k, v in wanted.items()) and all(
            v is None or k in wanted for k, v in got.items()
        )
    if isinstance(wanted, list) and isinstance(got, list):
        return len(got) == len(wanted) and all(covers(g, w) for g, w in zip(got, wanted, strict=True))
    if isinstance(got, float) and isinstance(wanted, int) and not isinstance(wanted, bool):
        return math.isclose(got, wanted, rel_tol=1e-15)
    return got == wanted
