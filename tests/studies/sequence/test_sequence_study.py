"""The study through the engine: every model once, arms with their figures, failures and continuation."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast.studies.engine.session import execute_study
from holdfast.studies.sequence.plan import SequenceConfig
from holdfast.studies.sequence.study import SequenceStudy


def quiet():
    return Console(file=io.StringIO(), width=160)


@pytest.mark.slow
def test_an_arm_that_comes_later_gets_models_whose_weights_were_not_kept(asked, monkeypatch):
    monkeypatch.setattr(SequenceStudy, "one_in_process", True)
    first = SequenceConfig.read(asked(names=("rivers", "letters", "music")))
    execute_study(SequenceStudy(first), console=quiet(), workers=1)
    made = [first.folder(name, 0) for name in first.chains[0].models]
    assert [any(folder.glob("*.safetensors")) for folder in made] == [False, False, True]

    later = SequenceConfig.read(
        asked(names=("rivers", "letters", "music"), arms=["sequential", "single", {"l2": {"coefficient": 0.1}}])
    )
    console = quiet()
    record = execute_study(SequenceStudy(later), console=console, workers=1)
    assert len(record.arms) == 3 and "made again" in console.file.getvalue()
    left = [name for name in later.models if any(later.folder(name, 0).glob("*.safetensors"))]
    assert set(left) == {chain.models[-1] for chain in later.chains}
