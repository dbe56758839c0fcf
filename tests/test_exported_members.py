"""The public interface: what `holdfast` exports, pinned, and that asking for it is cheap."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

# fmt: off
PUBLIC = [
    "train", "train_config", "load_train_config", "TrainConfig",
    "LabelAnnealing", "TokenWeighting", "L2", "EWC", "SequentialAveraging", "WiseFT", "ExponentialAverage", "Replay",
    "Multitask", "SelfReplay", "Budget", "MoFO",
    "retention_methods", "attach_retention",
    "compute_fisher", "FisherSettings",
    "RetentionMixin", "RetentionTrainer", "SFTRetentionTrainer", "DPORetentionTrainer", "GRPORetentionTrainer",
    "KTORetentionTrainer",
    "OnPolicyTrainer", "SelfDistillationTrainer",
    "annealed_loss", "describe_head",
    "evaluate", "evaluate_models", "Loaded", "ModelRequest", "ModelLoading", "ProgressDisplay",
    "compare_runs", "compare_folders", "compare_samples", "ComparisonOptions", "stage_matrix",
    "parse_evaluation", "EvaluationPlan", "EvaluationFolder",
    "RunFolder", "write_run_report",
    "load_study", "run_study", "read_study", "StudyRecord", "select_trial",
    "merge", "extract_residual", "apply_residual", "transfer_residual",
    "checkpoint_distance", "perturb_checkpoint", "inspect_checkpoint",
    "Policies", "CheckpointReader", "perturbed", "init_stds",
    "HoldfastError", "UserError", "ConfigError", "DataError", "ModelError", "RunFolderError", "ShapeError",
    "TrainingDiverged", "NotFinite", "StorageError", "Interrupted",
]
# fmt: on
"""Adding a name is a decision, removing one breaks users: both show here."""


def test_the_public_names_are_these():
    assert sorted(holdfast.__all__) == sorted(PUBLIC)
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    assert set(PUBLIC) <= set(dir(holdfast))


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in holdfast._HOMES.items() for n in names])
def test_each_name_is_the_one_at_home(module, name):
    home = importlib.import_module(f"holdfast.{module}")
    assert getattr(holdfast, name) is getattr(home, holdfast._NAMED_THERE.get(name, name))
    assert getattr(holdfast, name).__doc__


def test_what_type_checkers_see_is_what_python_gives():
    """The imports under TYPE_CHECKING, the table of homes and `__all__` name the same things."""
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    given = {
        n: (f"holdfast.{m}", holdfast._NAMED_THERE.get(n, n)) for m, names in holdfast._HOMES.items() for n in names
    }
    assert seen == given
    assert set(given) == set(holdfast.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'tain'"):
        holdfast.tain  # noqa: B018
    with pytest.raises(ImportError):
        from holdfast import tain  # noqa: F401


def test_a_submodule_is_not_hidden_by_a_name():
    """A function called like a subpackage would be replaced by it at the first import of something inside."""
    package = Path(holdfast.__file__).parent
    submodules = {p.stem for p in package.glob("*.py")} | {p.name for p in package.iterdir() if p.is_dir()}
    assert not submodules & set(holdfast.__all__)


def test_importing_is_quick_and_loads_nothing():
    code = (
        "import sys, time\n"
        "began = time.process_time()\n"
        "import holdfast\n"
        "seconds = time.process_time() - began\n"
        "dir(holdfast); holdfast.ConfigError; holdfast.RunFolder\n"
        "heavy = sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'transformers', 'trl', "
        "'datasets', 'numpy', 'plotly', 'lm_eval'})\n"
        "print(seconds, *heavy)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(3)
    ]
    assert all(len(words) == 1 for words in runs), runs
    assert min(float(words[0]) for words in runs) < 0.05  # the best of three: the machine may be busy
