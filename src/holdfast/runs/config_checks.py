"""What can be known to be wrong before anything is loaded: paths, ranges, combinations. Every check
returns sentences, none raises; no torch.

A name such as `Qwen/Qwen3-0.6B` may be a hub id or a folder. It is taken as a local path when it
says so (`./`, `/`, `~`), when it has more than one separator or a data file's ending, and as a hub
id otherwise; with `HF_HUB_OFFLINE=1` a missing folder is reported as missing here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.named import folder_without_revision, is_no_model, located, near_model
from holdfast.checkpoints.sources import read_config, read_object
from holdfast.config.values import show
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import ConfigError, KeyPath, ModelError, Problem, did_you_mean
from holdfast.retention.protocol import LAST_STEP, changes_data
from holdfast.support.paths import expanded, impossible_path, real

if TYPE_CHECKING:
    from holdfast.retention.protocol import RetentionMethod
    from holdfast.runs.settings import RunSettings

DATA_ENDINGS = (
    ".jsonl",
    ".json",
    ".ndjson",
    ".parquet",
    ".csv",
    ".tsv",
    ".txt",
    ".text",
    ".md",
    ".arrow",
    ".gz",
    ".zst",
    ".xz",
    ".bz2",
    ".zip",
)
_LOCAL_FOLDERS = {
    "models",
    "model",
    "data",
    "datasets",
    "runs",
    "checkpoints",
    "output",
    "outputs",
    "out",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def looks_local(name: str, *, endings: tuple[str, ...] = ()) -> bool:
    """Whether a name that does not exist was meant as a local path instead of a hub id."""
    if (
        name.startswith((".", "/", "~"))
        or "\\" in name
        or name.lower().endswith(endings or ("\0",))
    ):
        return True
    if name.count("/") == 1:
        folder = name.partition("/")[0]
        return folder in _LOCAL_FOLDERS or (_is_offline() and Path(folder).is_dir())
    return "/" in name or not _HUB_ID.fullmatch(name)


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


# -------------------------------------------------------------------------------------------- model


def check_model(name: str | None, *, key: str = "model_name_or_path") -> list[Problem]:
    """A model given as a local folder must be one that transformers can load from safetensors; hub
    ids are not looked up here."""
    if not name:
        return [
            Problem(
                key,
                "is missing. Give the model to start from: a local folder or a hub id, as in "
                f"'{key}: Qwen/Qwen3-0.6B'.",
            )
        ]
    try:
        path = expanded(located(name))
    except ModelError as error:
        return [Problem(key, f"{error}")]
    if path.is_dir():
        return [Problem(key, problem) for problem in _check_model_folder(path)]
    if path.is_file():
        return [
            Problem(
                key,
                f"expected a folder with config.json and *.safetensors, got the file {name}. Give "
                f"its folder: {path.parent}.",
            )
        ]
    lacks = folder_without_revision(name)
    if lacks or looks_local(name):
        return [
            Problem(
                key, f"no such folder: {name}.{lacks or nearest_sibling(path, accept=Path.is_dir)}"
            )
        ]
    if is_no_model(name):
        return [
            Problem(
                key, f"no such folder: {name} (a hub id has the form owner/name).{near_model(name)}"
            )
        ]
    return []


def _check_model_folder(path: Path) -> list[str]:
    from holdfast.checkpoints.reader import weight_files

    names = sorted(p.name for p in path.iterdir())
    if "config.json" not in names:
        if "adapter_config.json" in names:
            return [
                f"{path} is a LoRA adapter, not a model: it has no config.json. "
                f"{_base_of_adapter(path)}"
            ]
        inside = [n for n in names if (path / n / "config.json").is_file()]
        if inside:
            return [
                f"{path} has no config.json, but its folder '{inside[-1]}' has: use "
                f"{path / inside[-1]}."
            ]
        content = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing"
        return [f"expected a model folder with config.json in {path}, found {content}."]
    try:
        read_config(path)
        weight_files(path)
    except ModelError as error:
        return [str(error)]
    return []


def _base_of_adapter(path: Path) -> str:
    try:
        base = read_object(path / "adapter_config.json", "an adapter's configuration").get(
            "base_model_name_or_path"
        )
    except ModelError:
        base = None
    return (
        f"Its base model is {base}: start from the base, or first merge the adapter into it."
        if base
        else "Merge it into its base model first."
    )


# --------------------------------------------------------------------------------------------- data


def check_data(values: Mapping[str, Any], *, beside: Path | None = None) -> list[Problem]:
    """The training data: given at all, in one way, and where it is local, there.

    Args:
        values: a run's settings.
        beside: the configuration file.
    """
    dataset_name, datasets = values.get("dataset_name"), values.get("datasets") or []
    if not dataset_name and not datasets:
        return [
            Problem(
                "dataset_name",
                "is missing. Give the training data: a file (JSONL, Parquet, text), a folder or a "
                "hub id, as in 'dataset_name: train.jsonl'.",
            )
        ]
    problems = []
    if dataset_name:
        problems += check_path("dataset_name", dataset_name, beside=beside)
    if datasets:
        if dataset_name:
            problems.append(
                Problem(
                    "dataset_name",
                    "expected one of dataset_name and datasets, got both. Leave one out, or add "
                    "this data as an entry under datasets:.",
                )
            )
        if values.get("dataset_config"):
            problems.append(
                Problem(
                    "dataset_config",
                    (
                        "applies to dataset_name only. Under datasets:, give each entry its own "
                        "name:."
                    ),
                )
            )
        if values.get("dataset_train_split") not in (None, "train"):
            problems.append(
                Problem(
                    "dataset_train_split",
                    (
                        "applies to dataset_name only. Under datasets:, give each entry its own "
                        "split:."
                    ),
                )
            )
    for number, entry in enumerate(datasets):
        if Path(str(entry.path)).suffix or "/" in str(entry.path):
            problems += check_path(("datasets", number, "path"), str(entry.path), beside=beside)
        for file in _files_of(entry.data_files):
            if entry.data_dir is None:
                problems += check_path(("datasets", number, "data_files"), file, beside=beside)
    return problems


def _files_of(data_files: Any) -> list[str]:
    if data_files is None:
        return []
    if isinstance(data_files, Mapping):
        return [f for v in data_files.values() for f in _files_of(v)]
    return [data_files] if isinstance(data_files, str) else [str(f) for f in data_files]


def check_path(key: str | KeyPath, name: str, *, beside: Path | None = None) -> list[Problem]:
    """A data path that looks local must exist. Globs and URLs are left to `datasets`.

    Args:
        beside: the configuration file, to notice a path that was meant relative to it.
    """
    if "://" in name or any(c in name for c in "*?["):
        return []
    path = expanded(name)
    if path.is_file() and path.stat().st_size == 0:
        return [Problem(key, f"{name} is empty (0 bytes).")]
    if path.exists() or not looks_local(name, endings=DATA_ENDINGS):
        return []
    hint = nearest_sibling(path)
    if beside is not None and (beside.parent / path).exists():
        hint = (
            f" {beside.parent / path} exists, but paths are relative to the working directory, not "
            "to the configuration file."
        )
    return [
        Problem(key, f"no such file or folder: {name} (working directory: {Path.cwd()}).{hint}")
    ]


def check_chat_template(text: str | None, values: Mapping[str, Any]) -> list[Problem]:
    """A template that stands in the configuration has to be one, and the only one."""
    if text is None:
        return []
    if values.get("chat_template_path") is not None:
        return [Problem("chat_template", "expected chat_template or chat_template_path, got both.")]
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        _compile_jinja_template(text)
    except Exception as error:  # jinja2's errors have no common base with those of its sandbox
        return [
            Problem(
                "chat_template",
                f"expected a Jinja template: {error}. A file goes under chat_template_path.",
            )
        ]
    if "{" not in text:
        return [
            Problem(
                "chat_template",
                f"expected a Jinja template, got {show(text)}. A file goes under "
                "chat_template_path.",
            )
        ]
    return []


def check_turns(keys: RunSettings, values: Mapping[str, Any]) -> list[Problem]:
    """What does not go with `train_on`, `train_thoughts` and `rewritten_turns`."""
    if keys.train_on is not None and keys.trainer != "sft":
        return [Problem("train_on", f"applies only with trainer: sft, got {keys.trainer}.")]
    if keys.train_on is not None or values.get("assistant_only_loss"):
        return []
    problems = []
    for key, value, default in (
        ("train_thoughts", keys.train_thoughts, True),
        ("rewritten_turns", keys.rewritten_turns, "refuse"),
    ):
        if value != default:
            problems.append(
                Problem(
                    key,
                    "applies only if the assistant's messages alone are trained. Set "
                    "assistant_only_loss: true, or train_on.",
                )
            )
    return problems


def check_split_off(values: Mapping[str, Any], held_out: str | None) -> list[Problem]:
    """Rows that are taken out of the training data have to be there to be taken.

    Args:
        values: a run's settings.
        held_out: what `eval_strategy` reads where a file of its own is named.
    """
    size = values.get("test_split_size")
    if not isinstance(size, (int, float)):
        return []
    problems = []
    if size >= 1 and size != int(size):
        problems.append(
            Problem(
                "test_split_size",
                f"expected a share below 1, or a whole number of rows, got {size}.",
            )
        )
    if held_out is not None:
        problems.append(
            Problem("test_split_size", "expected test_split_size or eval_dataset_name, got both.")
        )
    if values.get("dataset_streaming") or values.get("streaming"):
        problems.append(
            Problem(
                "test_split_size",
                "a streamed data set cannot be split. Give held-out rows with eval_dataset_name.",
            )
        )
    return problems


def check_streaming(
    values: Mapping[str, Any], methods: Sequence[RetentionMethod], lines: Collection[str]
) -> list[Problem]:
    """A stream of rows has no number of rows and no row by its number.

    Args:
        values: a run's settings.
        methods: the run's.
        lines: keys that the user set.
    """
    mixture = bool(values.get("datasets"))
    key, other = (
        ("streaming", "dataset_streaming") if mixture else ("dataset_streaming", "streaming")
    )
    belongs = "datasets:" if other == "streaming" else "dataset_name"
    problems = [Problem(other, f"belongs to {belongs}. Use {key}.")] if values.get(other) else []
    if not values.get(key):
        return problems
    if not (values.get("max_steps") or 0) > 0:
        problems.append(
            Problem(
                "max_steps",
                f"expected a number of steps, because with {key} the number of rows is unknown.",
            )
        )
    if "num_train_epochs" in lines:
        problems.append(
            Problem(
                "num_train_epochs",
                f"has no effect with {key}: a stream is repeated until max_steps. Leave one out.",
            )
        )
    strategy = str(values.get("train_sampling_strategy") or "random")
    if strategy not in ("random", "sequential"):
        problems.append(
            Problem(
                "train_sampling_strategy",
                f"{strategy} sorts all rows, which is impossible with {key}. Leave one out.",
            )
        )
    workers, most = (
        values.get("dataloader_num_workers") or 0,
        0 if values.get("shuffle_dataset") else 1,
    )
    if workers > most:
        problems.append(
            Problem(
                "dataloader_num_workers",
                f"expected at most {most} with {key}{'' if most else ' and shuffle_dataset'}, "
                f"got {workers}. With more workers, the order of rows depends on their number.",
            )
        )
    for method in methods:
        if not method.off and changes_data(method):
            problems.append(
                Problem(
                    ("retention", method.name),
                    f"needs to know the number of training rows. Leave out {key}.",
                )
            )
        term = None if method.off else method.token_loss()
        if term is not None and term.teacher.kind == "cached":
            problems.append(
                Problem(
                    ("retention", method.name, "teacher"),
                    "cached needs all rows before training. Use online or adapter_off, or leave "
                    f"out {key}.",
                )
            )
    return problems


def check_early_stopping(
    patience: int | None, held_out: str | None, part: str | None, values: Mapping[str, Any]
) -> list[Problem]:
    """Stopping early keeps the best checkpoint, so there have to be evaluations to choose it by;
    and what is named for them has to be read."""
    problems = []
    if held_out is not None and str(values.get("eval_strategy") or "no") == "no":
        problems.append(
            Problem(
                "eval_dataset_name",
                "has no effect without eval_strategy. Add eval_strategy: epoch, or leave it out.",
            )
        )
    if held_out is None and part is not None:
        problems.append(
            Problem(
                "eval_dataset_split",
                "selects a part of eval_dataset_name. Add eval_dataset_name, or use "
                "dataset_test_split.",
            )
        )
    if patience is None or values.get("load_best_model_at_end"):
        return problems
    return [
        *problems,
        Problem(
            "early_stopping_patience",
            "expected load_best_model_at_end: true, and equal eval_strategy and save_strategy, "
            "because early stopping keeps the best model, not the last one.",
        ),
    ]


def check_best(
    method: RetentionMethod, values: Mapping[str, Any], early: bool = False
) -> list[Problem]:
    """A run that ends with its best checkpoint would undo what a method does after the last step.

    Args:
        method: a run's.
        values: a run's settings.
        early: whether `early_stopping` chooses the checkpoint.
    """
    key = (
        "early_stopping"
        if early
        else "load_best_model_at_end"
        if values.get("load_best_model_at_end")
        else None
    )
    if method.off or LAST_STEP not in method.needs or key is None:
        return []
    return [
        Problem(
            (),
            "changes the weights after the last step, so no checkpoint saved during training has "
            f"the final weights. Leave out {key}.",
        )
    ]


def check_stopping(
    rules: Collection[Any], patience: int | None, values: Mapping[str, Any]
) -> list[Problem]:
    """What would choose the result beside `early_stopping`, or keep it from doing so.

    Args:
        rules: those of `early_stopping`.
        patience: `early_stopping_patience`.
        values: a run's settings.
    """
    if not rules:
        return []
    others = [k for k in ("load_best_model_at_end", "metric_for_best_model") if values.get(k)]
    others += (
        [Problem("save_strategy", "best")] if str(values.get("save_strategy")) == "best" else []
    )
    others += (
        ["lr_scheduler_type"]
        if str(values.get("lr_scheduler_type")) == "reduce_lr_on_plateau"
        else []
    )
    others += ["early_stopping_patience"] if patience is not None else []
    return [
        Problem(
            "early_stopping",
            f"chooses the final model, and so does {name}. Leave one of them out.",
        )
        for name in others
    ]


def check_method(method: RetentionMethod) -> list[Problem]:
    """What lies at the path of the data a retention method names, such as an empty file; that it
    exists is the method's own check too, and so is everything about anchors."""
    data = getattr(method, "data", None)
    return check_path("data", data) if isinstance(data, str) and data else []


def check_stopping_processes(launching: Mapping[str, Any]) -> list[Problem]:
    """What ends a run by what is measured along it needs the whole model in one process; of several
    the model is kept at those moments and measured at the end.

    Args:
        launching: options of `accelerate launch`.
    """
    from holdfast.runs import launch

    try:
        count = launch.processes(launching)
    except ConfigError:  # the accelerate configuration is a mistake of its own
        return []
    if count == 1:
        return []
    return [
        Problem(
            "early_stopping",
            f"expected one process, got {count}: with several processes, measuring is possible "
            "only after training. Leave it out, or train in one process.",
        )
    ]


# -------------------------------------------------------------------------- ranges and combinations


def check_ranges(values: Mapping[str, Any]) -> list[Problem]:
    """Numbers whose bounds depend on more than the key."""
    problems = []
    epochs = values.get("num_train_epochs")
    if isinstance(epochs, (int, float)) and epochs <= 0 and not (values.get("max_steps") or 0) > 0:
        problems.append(Problem("num_train_epochs", f"expected a number above 0, got {epochs}."))
    rank = values.get("osf_effective_rank")
    if isinstance(rank, (int, float)) and (rank <= 0 or (isinstance(rank, float) and rank >= 1)):
        problems.append(
            Problem(
                "osf_effective_rank",
                "expected a whole number of at least 1, or a share above 0 and below 1, got "
                f"{rank}.",
            )
        )
    return problems


def check_combinations(
    values: Mapping[str, Any], given: Collection[str], *, has_accelerator: bool
) -> list[Problem]:
    """Keys that contradict each other or the machine, or that have no effect without another.

    Args:
        values: a run's settings.
        given: keys that the user set.
        has_accelerator: whether the machine has one.
    """
    on, output, model = values.get, values.get("output_dir"), values.get("model_name_or_path")
    bits = [key for key in BITS if on(key)]
    problems = []
    if bits and not on("use_peft"):
        problems += [
            Problem(
                key,
                "quantised weights cannot be trained themselves; add 'use_peft: true' (LoRA on top "
                f"of them) or leave {key} out.",
            )
            for key in bits
        ]
    problems += _check_adapter(values, bits) + _check_switches(values, given)
    rules = (
        (
            on("save_on_each_node"),
            Problem(
                "save_on_each_node",
                "has no effect: all nodes share one folder for checkpoints and records. Leave "
                "it out.",
            ),
        ),
        (
            len(bits) > 1,
            Problem("load_in_4bit", "expected one of load_in_4bit and load_in_8bit, got both."),
        ),
        (on("bf16") and on("fp16"), Problem("bf16", "expected one of bf16 and fp16, got both.")),
        (
            on("bf16") and not on("use_cpu") and not has_accelerator,
            Problem(
                "bf16",
                "needs an accelerator with bfloat16, and this machine has none. Leave bf16 out "
                "(training runs in float32 here), or add 'use_cpu: true' to compute in bfloat16 on "
                "the CPU.",
            ),
        ),
        (
            on("fp16") and not has_accelerator,
            Problem(
                "fp16",
                "needs an accelerator, and this machine has none. Leave fp16 out (training runs "
                "in float32 here).",
            ),
        ),
    )
    problems += [text for broken, text in rules if broken]
    if isinstance(on("resume_from_checkpoint"), str):
        problems.append(
            Problem(
                "resume_from_checkpoint",
                "expected true or no value: a run continues from the newest complete checkpoint in "
                "its output_dir. Leave it out. To start from the weights of another checkpoint, "
                "give its folder as model_name_or_path.",
            )
        )
    elif on("resume_from_checkpoint") is False:
        problems.append(
            Problem(
                "resume_from_checkpoint",
                "expected true or no value, got false: a run continues from the newest complete "
                "checkpoint in its output_dir. Leave it out. To start over, give another "
                "output_dir or delete this one.",
            )
        )
    if isinstance(output, str):
        path = Path(os.path.expanduser(output))
        advice = impossible_path(path)
        if advice:
            problems.append(
                Problem("output_dir", f"expected a folder, got {show(output)}. {advice}")
            )
        elif path.exists() and not path.is_dir():
            problems.append(Problem("output_dir", f"expected a folder, but {output} is a file."))
        elif isinstance(model, str) and path.is_dir() and real(path) == real(expanded(model)):
            problems.append(
                Problem(
                    "output_dir",
                    f"{output} is the folder of the initial model, which would be overwritten. "
                    "Choose another folder.",
                )
            )
    return problems


BITS = ("load_in_4bit", "load_in_8bit")
"""Keys that quantise the weights."""
OF_FOUR_BITS = ("bnb_4bit_quant_type", "bnb_4bit_quant_storage", "use_bnb_nested_quant")
"""Keys that say how, in 4 bits."""
_SWITCHES = ("use_rslora", "use_dora")
"""Keys of LoRA that are on or off."""


def _check_adapter(values: Mapping[str, Any], bits: Sequence[str]) -> list[Problem]:
    """Keys of one PEFT method beside another.

    Args:
        bits: the keys that quantise.
    """
    if values.get("peft_method") != "osf":
        return [
            Problem(
                key,
                "applies only to orthogonal subspace fine-tuning. Add 'use_peft: true' and "
                "'peft_method: osf', or leave it out.",
            )
            for key in ("osf_effective_rank", "osf_target_modules")
            if values.get(key) is not None
        ]
    problems = []
    if not values.get("use_peft"):
        problems.append(
            Problem(
                "peft_method",
                "osf needs 'use_peft: true'. Add it, or leave peft_method out.",
            )
        )
    problems += [
        Problem(
            key,
            f"osf decomposes whole weight matrices into singular vectors. Leave {key} out, or "
            "use peft_method: lora.",
        )
        for key in bits
    ]
    for key, value in values.items():
        if _sets_lora(key, value):
            text = (
                "applies only to LoRA, but peft_method is osf, which has the keys "
                "osf_effective_rank and osf_target_modules. Leave it out."
            )
            problems.append(Problem(key, text))
    return problems


def _sets_lora(key: str, value: Any) -> bool:
    """Whether a key is one of LoRA's and is set to something."""
    if key in _SWITCHES:
        return bool(value)
    return key.startswith("lora_") and key != "lora_task_type" and value is not None


def _check_switches(values: Mapping[str, Any], given: Collection[str]) -> list[Problem]:
    """Keys of LoRA and of 4-bit weights where their switch was not given. One that was given as
    false is the user's word: sweeps vary it.

    Args:
        given: keys that the user set.
    """
    problems = []
    if (
        "use_peft" not in given and values.get("peft_method") != "osf"
    ):  # which says so of every key of LoRA's
        for key, value in values.items():
            if key in given and _sets_lora(key, value):
                text = (
                    f"applies only to LoRA. Add 'use_peft: true', or leave {key} out. "
                    f"To keep {key} without effect, add 'use_peft: false'."
                )
                problems.append(Problem(key, text))
    if not {*BITS} & {*given}:
        for key in OF_FOUR_BITS:
            if key in given and values.get(key):
                text = (
                    "applies only to 4-bit weights. Add 'load_in_4bit: true', or leave "
                    f"{key} out. To keep {key} without effect, add 'load_in_4bit: false'."
                )
                problems.append(Problem(key, text))
    return problems


def check_preset(name: str) -> list[Problem]:
    """`accelerate_config` is a file or one of the presets that TRL ships."""
    if expanded(name).is_file():
        return []
    from importlib import resources

    presets = sorted(
        p.name.removesuffix(".yaml")
        for p in resources.files("trl.accelerate_configs").iterdir()
        if p.name.endswith(".yaml")
    )
    if name in presets:
        return []
    return [
        Problem(
            "accelerate_config",
            f"expected a YAML file or one of {', '.join(presets)}, got "
            f"{name!r}.{did_you_mean(name, presets)}",
        )
    ]
