"""Loading models, tokenizers and training data as a config names them, with errors a user can act
on.

Safetensors only, no remote code unless `trust_remote_code: true`, no download unless a hub id is
named.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import models
from holdfast.checkpoints.named import located
from holdfast.errors import ConfigError, DataError, ModelError, did_you_mean, first_line
from holdfast.runs.trainers import TRAINERS
from holdfast.support.environment import EFFICIENT_LOADING, loads_on_one_process_only

if TYPE_CHECKING:
    from trl import ModelConfig

    from holdfast.data.trained_turns import TrainedTurns
    from holdfast.data.unread import Counts
    from holdfast.runs.config import TrainConfig


def load_model(config: TrainConfig) -> Any:
    """The start model as transformers loads it, in the config's dtype, quantised when the config
    says so.

    Raises:
        ModelError: not found, not a causal LM, no safetensors.
    """
    from trl import get_quantization_config

    from holdfast.ops.four_bits import keep_unpacked

    name = config.model.model_name_or_path
    kwargs: dict[str, Any] = {
        "revision": config.model.model_revision,
        "trust_remote_code": config.training.trust_remote_code,
        "attn_implementation": config.model.attn_implementation,
        "dtype": config.model.dtype,
        "use_safetensors": True,
        **(config.training.model_init_kwargs or {}),
    }
    quantization = get_quantization_config(config.model)
    if quantization is not None:
        kwargs["quantization_config"] = quantization
        kwargs["device_map"] = {"": config.training.device}
    if config.retention and loads_on_one_process_only():
        # The other processes of a machine would get empty weights, handed around when the model is
        # sharded: too late for teachers and anchors.
        os.environ[EFFICIENT_LOADING] = "false"
    models.check_model(
        name,
        revision=config.model.model_revision,
        trust_remote_code=config.training.trust_remote_code,
    )
    model = models.from_pretrained(name, **kwargs)
    keep_unpacked(model)  # it is measured before it is trained
    return model


def quantised_by(model: ModelConfig) -> str:
    """How a run's settings quantise its model as it is loaded; empty where they do not."""
    bits = 4 if model.load_in_4bit else 8 if model.load_in_8bit else None
    kind = f", {model.bnb_4bit_quant_type}" if bits == 4 else ""
    return f"quantised to {bits} bits as it was loaded (bitsandbytes{kind})" if bits else ""


def loaded_otherwise(model: ModelConfig) -> dict[str, Any]:
    """What a run's settings make of stored weights, for the keys of figures: a quantised model, or
    one in another dtype, is another model. Empty where the weights are used as they are stored."""
    stored = models.saved_dtype(model.model_name_or_path)
    taken = model.dtype if model.dtype not in (None, "auto", stored) else None
    changes = list(filter(None, (quantised_by(model), taken)))
    return {"loaded": changes} if changes else {}


def load_tokenizer(config: TrainConfig) -> Any:
    """The model's tokenizer as training will have it: with an end-of-sequence token, a padding
    token and the chat template asked for.

    TRL sets these too, but only when the trainer is made; the data is checked and the start model
    evaluated before that.

    Raises:
        ModelError: no tokenizer in the folder, one without an end-of-sequence token, a token that
            is not in the vocabulary, no such template.
    """
    name = config.model.model_name_or_path
    tokenizer = models.load_tokenizer(
        name,
        revision=config.model.model_revision,
        trust_remote_code=config.training.trust_remote_code,
    )
    _complete(tokenizer, config)
    return models.with_plain_messages(_with_template(tokenizer, config))


def add_template_tokens(model: Any, tokenizer: Any, config: TrainConfig) -> list[int]:
    """Gives model and tokenizer the tokens, and the end of a turn, that the chat template of
    another model brings, so that the start is measured with the tokenizer that is trained: TRL adds
    them when it makes the trainer, after that.

    Args:
        model, tokenizer: changed in place; rows of new tokens are drawn from the run's seed.

    Returns:
        Ids of the tokens that are new; empty for a template from a file.
    """
    from transformers import set_seed
    from trl import clone_chat_template

    path = config.training.chat_template_path
    if path is None or path.endswith((".jinja", ".j2")):
        return []
    set_seed(config.training.seed)
    _, _, added = clone_chat_template(model, tokenizer, located(path))
    models.with_plain_messages(tokenizer)
    return list(added)


def load_processor(config: TrainConfig) -> Any:
    """The processor of a vision-language model as training will have it, None for a model that
    takes text only.

    Raises:
        ModelError: as `load_tokenizer`; no processor in the folder.
        ConfigError: settings that do not go with such a model.
    """
    model, args = config.model, config.training
    name, trusted = model.model_name_or_path, args.trust_remote_code
    if not models.takes_images(name, model.model_revision, trust_remote_code=trusted):
        return None
    path = args.chat_template_path
    rules = (
        (
            args.packing,
            "packing: expected false with a vision-language model: TRL packs no rows with images.",
        ),
        (
            args.padding_free,
            "padding_free: expected false with a vision-language model: TRL pads rows with images.",
        ),
        (
            path is not None and not path.endswith((".jinja", ".j2")),
            f"chat_template_path: expected a .jinja file with a vision-language model, got {path}.",
        ),
        (
            config.script.dataset_streaming,
            "dataset_streaming: expected false with a vision-language model: its images are "
            "checked before training.",
        ),
    )
    if problems := [text for broken, text in rules if broken]:
        raise ConfigError(problems)
    processor = models.load_processor(
        name, revision=model.model_revision, trust_remote_code=trusted
    )
    _complete(processor.tokenizer, config)
    return _with_template(processor, config)


def check_images(config: TrainConfig, rows: Any) -> None:
    """Stops where rows hold images and a setting cannot do with them.

    Raises:
        ConfigError: all of it.
    """
    if "images" not in (getattr(rows, "column_names", None) or ()):
        return
    from holdfast.training.method_checks import token_losses

    terms = token_losses(config.retention)
    rules = (
        (
            any(term.teacher.kind == "cached" for term in terms),
            "retention.label_annealing.teacher: expected 'online' or 'adapter_off' for rows with "
            "images, got 'cached'. The cache identifies rows by their tokens and ignores images.",
        ),
        (
            config.training.truncation_mode == "keep_end",
            "truncation_mode: expected keep_start for rows with images, got keep_end, which "
            "would cut off the images.",
        ),
    )
    if problems := [text for broken, text in rules if broken]:
        raise ConfigError(problems)


def check_assistant_only(config: TrainConfig, processing: Any, rows: Any) -> None:
    """Stops where the assistant's turns cannot be told: TRL would find out after the start has been
    measured.

    Args:
        processing: tokenizer or processor, with its chat template.
        rows: as they are trained on.

    Raises:
        ConfigError: `assistant_only_loss` with rows that are no conversations, or a template that
            marks no part.
    """
    columns, train_on = getattr(rows, "column_names", None) or (), config.holdfast.train_on
    labelled = "labels" in columns and not {"messages", "prompt"}.isdisjoint(columns)
    if labelled or not _assistant_only(config) or not (columns or train_on):
        return
    # of prompts and completions that are messages TRL reads the marks, too, unless images are with
    # them
    in_turns = (
        "prompt" in columns
        and "images" not in columns
        and isinstance(next(iter(rows))["prompt"], list)
    )
    if columns and "messages" not in columns and not in_turns:
        key = f"assistant_only_loss: expected false{', and no train_on' if train_on else ''}"
        raise ConfigError(
            [
                f"{key}, because the rows are not conversations (messages). With prompt and "
                "completion, only the completion is trained unless completion_only_loss is "
                "false."
            ]
        )
    if train_on or not config.holdfast.train_thoughts:
        raise ConfigError(
            [
                "train_on, train_thoughts: expected a fast tokenizer, and rows that are not "
                "streamed and have no images. Leave out both keys: then "
                "assistant_only_loss trains the text that the chat template marks."
            ]
        )
    if _marked_template(processing) is None:
        raise ConfigError(
            [
                "assistant_only_loss: the chat template does not mark the assistant's turns. "
                "Expected {% generation %} and {% endgeneration %} around their text, which "
                "transformers reads. Give a template that has them (chat_template_path), or train "
                "whole conversations."
            ]
        )


def _assistant_only(config: TrainConfig) -> bool:
    """Whether only what the assistant says is trained."""
    if config.holdfast.train_on is not None:
        return True
    return bool(getattr(config.training, "assistant_only_loss", False))


def _marked_template(processing: Any) -> str | None:
    """A chat template that marks the assistant's turns: the model's own, or TRL's of a model that
    it knows; None where there is none."""
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    template = processing.chat_template
    if has_generation_markers(template):
        return str(template["default"] if isinstance(template, dict) else template)
    try:
        return get_training_chat_template(processing)
    except ValueError:
        return None


def trained_turns(config: TrainConfig, processing: Any) -> TrainedTurns | None:
    """Which turns of conversations are trained, where that is not left to TRL: it reads the marks
    of a template, and knows no others.

    Args:
        config: of the run.
        processing: tokenizer or processor, with its chat template.
    """
    from holdfast.data.trained_turns import TrainedTurns

    keys, script = config.holdfast, config.script
    streamed = script.dataset_streaming or config.mixture.streaming
    if not _assistant_only(config) or streamed or not getattr(processing, "is_fast", False):
        return None
    if not processing.chat_template or keys.trainer != "sft" or keys.on_policy is not None:
        return None
    marked = _marked_template(processing)
    if marked is not None and keys.train_on is None and keys.train_thoughts:
        return None
    return TrainedTurns(
        which=keys.train_on,
        thoughts=keys.train_thoughts,
        rewritten=keys.rewritten_turns,
        in_prompts=config.training.completion_only_loss is False,
        marked_template=marked,
    )


def _with_template(processing: Any, config: TrainConfig) -> Any:
    """A tokenizer or processor with the chat template that was asked for."""
    if config.holdfast.chat_template is not None:
        processing.chat_template = config.holdfast.chat_template
    elif config.training.chat_template_path is not None:
        processing.chat_template = load_chat_template(config.training.chat_template_path)
    return processing


def _complete(tokenizer: Any, config: TrainConfig) -> None:
    """Gives a tokenizer its end-of-sequence and padding tokens."""
    name = config.model.model_name_or_path
    for key in ("eos_token", "pad_token"):
        token = getattr(config.training, key)
        if token is not None and token not in tokenizer.get_vocab():
            raise ModelError(
                f"{key}: expected a token of the vocabulary of {name}, got "
                f"{token!r}.{did_you_mean(token, tokenizer.all_special_tokens)} "
                f"Its special tokens: {_special(tokenizer)}."
            )
    eos = config.training.eos_token or tokenizer.eos_token
    if eos is None:
        raise ModelError(
            f"The tokenizer of {name} has no end-of-sequence token, which ends every training "
            "example. Set eos_token to a token of its vocabulary (its special tokens: "
            f"{_special(tokenizer)})."
        )
    tokenizer.eos_token = eos
    if tokenizer.pad_token is None:
        # labels mask padding, so sharing the token is harmless
        tokenizer.pad_token = config.training.pad_token or eos


def load_chat_template(path: str) -> str:
    """The text of a chat template: a `.jinja` or `.j2` file, or the template of another model, of
    which no code is run.

    Raises:
        ModelError: no such file, or a model without one.
    """
    from transformers import AutoTokenizer

    if path.endswith((".jinja", ".j2")):
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelError(
                f"chat_template_path: expected a template file or a model that has one, but {path} "
                f"cannot be read: {reason}."
            ) from error
    try:
        template = AutoTokenizer.from_pretrained(
            located(path), trust_remote_code=False
        ).chat_template
    except (OSError, ValueError) as error:
        raise ModelError(
            "chat_template_path: expected a .jinja file or a model with a chat template, got "
            f"{path}: {first_line(error)}"
        ) from error
    if not isinstance(template, str):
        raise ModelError(
            f"chat_template_path: the tokenizer of {path} has no chat template; choose an instruct "
            "model or a .jinja file."
        )
    return template


def _special(tokenizer: Any) -> str:
    return ", ".join(repr(t) for t in tokenizer.all_special_tokens[:8]) or "none"


def check_files(config: TrainConfig) -> list[str]:
    """Looks at the local files that a run would read, all but the weights themselves: the model's
    headers and whether they fit its configuration, its tokenizer, the data to the end. Nothing is
    downloaded.

    Returns:
        Sentences about what was not looked at.

    Raises:
        ModelError, DataError, ConfigError: what is wrong.
    """
    from holdfast.data.sources import is_path
    from holdfast.evaluation.kinds.win_rate import WinRateEntry
    from holdfast.evaluation.runner import check_plan
    from holdfast.runs.packages import judges_need
    from holdfast.runs.rewards import reward_functions

    name = str(config.model.model_name_or_path)
    if not os.path.isdir(located(name)):
        return [
            f"{name} is on the hub: neither the model nor the data was checked",
            *_without_network(),
        ]
    models.check_model(name, trust_remote_code=config.training.trust_remote_code)
    if config.holdfast.trainer == "grpo":
        reward_functions(config.script)
    tokenizer, processor = load_tokenizer(config), load_processor(config)
    plan, notes = config.evaluation, []
    of_methods: list[str] = []
    for method in config.retention:
        if not method.off:
            of_methods += method.named_data()
    if data_is_here(config) and all(map(is_path, of_methods)):
        load_data(config, processor or tokenizer)
    else:
        notes.append("the data is on the hub and was not checked")
    # of another machine, or it had been refused: it may have the package
    asking = bool(judges_need(plan))
    local = [
        e for e in plan.entries if e.local_files() and not (asking and isinstance(e, WinRateEntry))
    ]
    get_processor = None if processor is None else lambda: processor
    if problems := check_plan(
        dataclasses.replace(plan, entries=tuple(local)), tokenizer, get_processor
    ):
        raise ConfigError(problems, source="evaluation")
    if others := [entry.name for entry in plan.entries if entry not in local]:
        notes.append(f"{', '.join(others)}: checked when the run begins")
    return notes


def data_is_here(config: TrainConfig) -> bool:
    """Whether all training data lies on this machine."""
    from holdfast.data.layouts import BUILDERS
    from holdfast.data.sources import is_path

    if not config.mixture.datasets:
        return config.script.dataset_name is not None and is_path(config.script.dataset_name)
    for entry in config.mixture.datasets:
        files = _files(entry.data_files)
        of_files = entry.path in BUILDERS and bool(files) and all(map(is_path, files))
        if not is_path(entry.path) and not of_files:
            return False
    return True


def _files(named: Any) -> list[str]:
    """The files that an entry of `datasets` names."""
    if isinstance(named, Mapping):
        return list(itertools.chain(*map(_files, named.values())))
    return [named] if isinstance(named, str) else [str(file) for file in named or ()]


def _without_network() -> list[str]:
    """What stands between this machine and the hub, as far as it is known."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        return ["HF_HUB_OFFLINE is set: only models and data in the hub's cache are available"]
    return (
        []
        if get_token()
        else ["no hub token here: gated models need one ('hf auth login', or HF_TOKEN)"]
    )


def load_data(
    config: TrainConfig, tokenizer: Any, not_read: Counts | None = None
) -> tuple[Any, str, Any]:
    """The training rows, the name of the format they came in, and the rows of `eval_strategy` (None
    when it is off). Rows that replay will mix in are read too, for their mistakes.

    Args:
        config: of the run.
        tokenizer: the model's; the processor of a vision-language model.
        not_read: gets what of the training rows is not read (see `holdfast.data.unread`).

    Raises:
        DataError: see `holdfast.data.sources` and `holdfast.data.formats`.
    """
    rows, layout = load_training_data(config, tokenizer, not_read)
    check_images(config, rows)
    check_assistant_only(config, tokenizer, rows)
    eval_rows = load_eval_data(config, tokenizer)
    if eval_rows is not None:
        eval_rows = _as_trained(eval_rows, rows)
    for method in config.retention:
        if not method.off:
            method.check_data(tokenizer)
    return rows, layout, eval_rows


def _as_trained(held_out: Any, rows: Any) -> Any:
    """Held-out rows with a column of images where the training rows have one; theirs is empty.

    Raises:
        DataError: they hold images and the training rows none, whose collator makes no pixels.
    """
    measures_images = "images" in (getattr(held_out, "column_names", None) or ())
    trains_images = "images" in (getattr(rows, "column_names", None) or ())
    if measures_images and not trains_images:
        raise DataError(
            "The held-out rows have images, but the training rows do not. Use held-out rows "
            "without images."
        )
    if trains_images and not measures_images:
        held_out = held_out.add_column("images", [[]] * len(held_out)).cast_column(
            "images", rows.features["images"]
        )
    return held_out


def load_training_data(
    config: TrainConfig, tokenizer: Any, not_read: Counts | None = None
) -> tuple[Any, str]:
    """The training rows in one of TRL's column layouts, and the name of the format they came in;
    with `on_policy` their prompts. `not_read` gets what of them is not read.

    Raises:
        DataError: see `holdfast.data.sources`, `holdfast.data.formats` and
            `holdfast.runs.on_policy`.
    """
    from holdfast.data.formats import standardise
    from holdfast.data.layouts import TEMPLATE_COLUMNS
    from holdfast.data.prompts import prompts_alone
    from holdfast.data.sources import data_files, is_path, left_out
    from holdfast.data.unread import columns_with_values
    from holdfast.runs.on_policy import read_prompts

    rows, files, turns = all_rows(config), None, trained_turns(config, tokenizer)
    name, script = config.script.dataset_name, config.script
    reads_files = (
        not script.dataset_streaming
        and not config.mixture.datasets
        and script.dataset_train_split == "train"
    )
    if config.mixture.test_split_size is not None:
        rows = _split(config, rows)["train"]
    elif reads_files and name is not None and is_path(name):
        files = data_files(name)  # so that a bad row is named by file and line
        if not_read is not None:
            not_read.update({f"the file {file}": None for file in left_out(name, files)})

    def read(rows: Any) -> tuple[Any, str]:
        if config.training.completion_only_loss is False and "completion_mask" in (
            rows.column_names or ()
        ):
            rows = rows.remove_columns("completion_mask")  # as TRL has it
        return standardise(
            rows,
            tokenizer,
            templates=_templates(config),
            files=files,
            read_from=_read_from(config),
            not_read=not_read,
            turns=turns,
        )

    if TRAINERS[config.holdfast.trainer].columns:
        return _in_trls_columns(config, rows, files=files, not_read=not_read), TRAINERS[
            config.holdfast.trainer
        ].layout
    if config.holdfast.on_policy is not None:
        if not_read is not None:
            used = (
                ["prompt"]
                if prompts_alone(rows.column_names)
                else set(rows.column_names) - set(TEMPLATE_COLUMNS)
            )
            not_read.update(
                columns_with_values(rows, [name for name in rows.column_names if name not in used])
            )
        answers = config.holdfast.on_policy.self_distillation is not None
        return read_prompts(rows, lambda rows: read(rows)[0], answers=answers), "prompts"
    return read(rows)


def _read_from(config: TrainConfig) -> list[Path] | None:
    """The local files that the training rows come from, all or a part of their rows; None where it
    is not known."""
    from holdfast.data.sources import data_files, is_path, is_saved_dataset
    from holdfast.support.paths import expanded

    if config.mixture.datasets:
        files: list[Path] = []
        for entry in config.mixture.datasets:
            files += map(expanded, _files(entry.data_files))
        return [file for file in files if file.is_file()] or None
    name = config.script.dataset_name
    if name is None or not is_path(name) or is_saved_dataset(expanded(name)):
        return None
    return data_files(name, split=config.script.dataset_train_split)


def all_rows(config: TrainConfig) -> Any:
    """The rows that are trained on, those among them that are held out."""
    from holdfast.data.sources import load_rows

    if config.mixture.datasets:
        from trl import get_dataset

        mixture = dataclasses.replace(config.mixture, test_split_size=None)
        fractions = [entry.fraction for entry in mixture.datasets]
        try:
            if mixture.streaming and any(fraction is not None for fraction in fractions):
                return _interleaved(mixture, fractions, config.training)
            return get_dataset(mixture)["train"]
        except Exception as error:  # of datasets, the hub, TRL: they have no common base
            raise DataError(f"datasets: {first_line(error)}") from error
    name, script = config.script.dataset_name, config.script
    if name is None:
        raise ConfigError("dataset_name: expected a file, folder or hub id, got nothing.")
    return load_rows(
        name,
        split=script.dataset_train_split,
        config=script.dataset_config,
        streaming=script.dataset_streaming,
    )


def _interleaved(mixture: Any, fractions: Sequence[float | None], args: Any) -> Any:
    """Streams of which each gives its share of the rows, drawn by the run's seed; each begins again
    at its end. TRL knows shares of data sets whose rows are counted only."""
    from datasets import interleave_datasets
    from trl import get_dataset

    if any(fraction is None for fraction in fractions):
        raise ValueError(
            "`fraction` must be set for either all datasets in the mixture or none of them."
        )
    streams, shares = [], []
    for entry, fraction in zip(mixture.datasets, fractions, strict=True):
        if fraction:
            unweighted = dataclasses.replace(entry, fraction=None)
            alone = dataclasses.replace(mixture, datasets=[unweighted])
            streams.append(get_dataset(alone)["train"].repeat(None))
            shares.append(float(fraction))
    total = sum(shares)
    return interleave_datasets(
        streams,
        probabilities=[share / total for share in shares],
        seed=args.seed if args.data_seed is None else args.data_seed,
    )


def _split(config: TrainConfig, rows: Any) -> Any:
    """The rows as "train" and "test". By the run's seed: TRL draws others each time, so that a run
    that is continued would train on what it is judged by.

    Raises:
        DataError: too few rows for that share.
    """
    size, args = config.mixture.test_split_size, config.training
    share = int(size) if size is not None and size >= 1 else size
    try:
        return rows.train_test_split(
            test_size=share, seed=args.seed if args.data_seed is None else args.data_seed
        )
    except ValueError as error:
        raise DataError(
            f"test_split_size: {size:g} of {len(rows)} rows cannot be held out: {error}"
        ) from error


def _templates(config: TrainConfig) -> Any:
    """The config's templates; TRL's `dataset_text_field` is one too."""
    from holdfast.data.formats import Templates

    field = config.training.dataset_text_field
    if config.holdfast.data is None and field and field != "text":
        return Templates(text="{" + field + "}")
    return config.holdfast.data


def load_eval_data(config: TrainConfig, tokenizer: Any, not_read: Counts | None = None) -> Any:
    """The rows of TRL's own `eval_strategy`, or None when it is off. `not_read` gets what of them
    is not read, unless they are a part of the training rows."""
    if str(getattr(config.training.eval_strategy, "value", config.training.eval_strategy)) == "no":
        return None
    from holdfast.data.formats import standardise

    rows, files = held_out_rows(config)
    if config.mixture.test_split_size is not None:
        not_read = None  # counted as training rows
    if TRAINERS[config.holdfast.trainer].columns:
        return _in_trls_columns(config, rows, files=None, not_read=not_read)
    return standardise(
        rows,
        tokenizer,
        templates=_templates(config),
        read_from=files,
        not_read=not_read,
        turns=trained_turns(config, tokenizer),
    )[0]


def _in_trls_columns(
    config: TrainConfig, rows: Any, *, files: Sequence[Path] | None, not_read: Counts | None
) -> Any:
    """The rows of a trainer that takes TRL's own columns, each of them looked at; arguments as of
    `read_pairs`."""
    from holdfast.data import pairs
    from holdfast.data.prompts import check_prompts

    if reader := TRAINERS[config.holdfast.trainer].reader:
        return getattr(pairs, reader)(rows, files=files, not_read=not_read)
    check_prompts(rows)
    return rows


def held_out_rows(config: TrainConfig) -> tuple[Any, list[Path] | None]:
    """The rows of `eval_strategy` as they are, and the files that they are from where that is
    known."""
    from holdfast.data.sources import data_files, is_path, is_saved_dataset, load_rows
    from holdfast.support.paths import expanded

    script = config.script
    if config.mixture.test_split_size is not None:
        return _split(config, all_rows(config))["test"], _read_from(config)
    if config.holdfast.eval_dataset_name is not None:
        name, split = config.holdfast.eval_dataset_name, config.holdfast.eval_dataset_split
        files = (
            data_files(name, split=split)
            if is_path(name) and not is_saved_dataset(expanded(name))
            else None
        )
        return load_rows(name, split=split), files
    try:
        rows = load_rows(
            script.dataset_name, split=script.dataset_test_split, config=script.dataset_config
        )
    except DataError as error:
        raise DataError(
            f"eval_strategy is on, so a '{script.dataset_test_split}' split is needed: {error} You "
            "can also give a file as eval_dataset_name, or turn eval_strategy off and list "
            "held-out files under evaluation:."
        ) from error
    return rows, _read_from(config)
