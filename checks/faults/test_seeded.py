"""The list of seeded faults fits the code as it is: every fault can be applied, and the baseline knows them all."""

from __future__ import annotations

from collections import Counter

import pytest
import seeded

FAULTS, KNOWN_FAILURES = seeded.read_faults()
TREE = seeded.Tree(seeded.ROOT / "src")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_can_be_applied(fault: seeded.Fault) -> None:
    path, changed = TREE.with_fault(fault)
    assert changed != path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        compile(changed, str(path), "exec")


def test_its_tests_are_there() -> None:
    targets = [target for fault in FAULTS for target in fault.tests] + KNOWN_FAILURES
    assert [t for t in targets if not (seeded.ROOT / t.partition("::")[0]).exists()] == []


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len(FAULTS) == 104
    assert [name for name, count in Counter(fault.id for fault in FAULTS).items() if count > 1] == []


def test_the_baseline_knows_them_all() -> None:
    baseline = seeded.read_results(seeded.BASELINE)
    assert sorted(baseline) == sorted(fault.id for fault in FAULTS)
    assert [name for name, result in baseline.items() if result["outcome"] == seeded.ERROR] == []


def test_a_snippet_is_found_however_it_is_wrapped(tmp_path) -> None:
    (tmp_path / "holdfast").mkdir()
    code = tmp_path / "holdfast" / "code.py"
    code.write_text("def f(a, b):\n    if a:\n        return max(\n            a, b\n        )\n")
    fault = seeded.Fault(id="x-y", says="", find="if a:\n  return max(a, b)", replace="if b:\n    return a", tests=())
    assert seeded.Tree(tmp_path).with_fault(fault) == (code, "def f(a, b):\n    if b:\n        return a\n")
    code.write_text(code.read_text() * 2)
    with pytest.raises(seeded.Inapplicable, match=r"code\.py \(2\)"):
        seeded.Tree(tmp_path).place(fault)
