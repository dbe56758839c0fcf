"""Pre-training a small base model, for studies that need one where no model is to be had.

A Llama-architecture decoder and a byte-level BPE tokenizer, trained on packed text with AdamW and a
cosine schedule. The result is an ordinary checkpoint folder. Bases are cached by what decides their
weights (texts, architecture, schedule, seed, library versions), so a study pays for its base once.

This is not a pre-training framework: one process, texts in memory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import DataError
from holdfast.papers.worlds.tuned import deciding_libraries, exclusive_lock
from holdfast.support.cache import cache_folder
from holdfast.support.environment import quiet_libraries
from holdfast.support.files import fingerprint, write_json

Count = Annotated[int, Meta(ge=1, le=10**6)]
"""Of layers, steps, texts: a small world has no more of anything."""
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]
Rate = Annotated[float, Meta(gt=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class BaseSettings:
    """A small base and its pre-training, as a request may ask for them."""

    settings_group: ClassVar[str] = "the base"
    settings_section: ClassVar[str] = "base"

    layers: Count = 4
    """Layers of the models."""
    width: Count = 128
    """Hidden size of the models, a multiple of the heads."""
    heads: Count = 4
    """Attention heads of the models."""
    mlp: Count = 344
    """Width of the SwiGLU layers."""
    vocab_size: Count = 2048
    """Vocabulary size of the byte-level BPE tokenizer."""
    context: Count = 128
    """Tokens in a training row. The model accepts four times as many."""
    batch_size: Count = 16
    """Rows per step of (continued) pre-training. Instruction tuning has twice as many conversations
    per step."""
    steps: Count = 400
    """Steps of pre-training."""
    learning_rate: Rate = 3e-3
    """Learning rate of pre-training."""
    weight_decay: ShareBelowOne = 0.1
    """Weight decay of pre-training."""
    initializer_range: Rate = 0.02
    """Standard deviation of the initial weights."""


@dataclass(frozen=True, kw_only=True)
class BaseRecipe(BaseSettings):
    """What decides a small base's weights, beside its texts."""

    warmup_steps: int = 20
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a base's tokenizer has beside what it learns from the texts."""

    words: tuple[str, ...] = ()
    """Pieces that are one token each wherever they stand, such as " Kamoran"; they come on top of
    `BaseRecipe.vocab_size`."""
    letters: tuple[str, ...] = ()
    """Likewise, but only where they stand alone: " A" of " A." and not of " About"."""
    special_tokens: tuple[str, ...] = ()
    """Such as chat markers; untrained where no text holds them."""
    chat_template: str | None = None
    """Jinja, saved with the tokenizer."""


def cached_base(
    texts: Sequence[str],
    recipe: BaseRecipe,
    *,
    vocabulary: Vocabulary | None = None,
    console: Any = None,
    cache: Path | None = None,
    callbacks: Sequence[Any] = (),
) -> Path:
    """The folder of a base pre-trained on `texts` by `recipe`: from the cache, or trained now.

    An interrupted pre-training continues from its last checkpoint. Of several processes one makes
    it, the others wait.

    Args:
        texts: see `pretrain`.
        recipe: architecture and schedule.
        vocabulary: what the tokenizer has besides; None: nothing.
        console: a `rich.console.Console` for the progress bar.
        cache: None: `holdfast.support.cache.cache_folder`.
        callbacks: of the trainer, for those who watch from outside.

    Raises:
        DataError: fewer tokens than one batch.
    """
    folder = base_folder(texts, recipe, vocabulary=vocabulary, cache=cache)
    if (folder / "base.json").is_file():
        return folder
    work = folder.parent.with_name(f"{folder.parent.name}.training")
    with exclusive_lock(folder.parent):
        if not (folder / "base.json").is_file():
            pretrain(
                texts, recipe, work, vocabulary=vocabulary, console=console, callbacks=callbacks
            )
            about = {
                "texts": len(texts),
                "sha256": _digest(texts),
                "libraries": deciding_libraries(),
            }
            write_json(work / "base.json", {"recipe": asdict(recipe), **about})
            # at most a folder without base.json: an unfinished older copy
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(exist_ok=True)
            os.replace(work, folder)
    return folder


def base_folder(
    texts: Sequence[str],
    recipe: BaseRecipe,
    *,
    vocabulary: Vocabulary | None = None,
    cache: Path | None = None,
) -> Path:
    """Where a base lies once it is made, which its `base.json` says. Arguments as `cached_base`
    takes them."""
    fields = asdict(recipe)
    if (
        recipe.initializer_range == BaseRecipe.initializer_range
    ):  # bases of before there was this field are found again
        del fields["initializer_range"]
    deciding: dict[str, Any] = {
        "texts": _digest(texts),
        "recipe": fields,
        "libraries": deciding_libraries(),
    }
    if vocabulary is not None:
        deciding["vocabulary"] = asdict(vocabulary)
        if not vocabulary.letters:  # likewise
            del deciding["vocabulary"]["letters"]
    return (cache or cache_folder()) / "bases" / fingerprint(deciding, length=16) / "small-base"


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()


@quiet_libraries()
def pretrain(
    texts: Sequence[str],
    recipe: BaseRecipe,
    folder: Path,
    *,
    vocabulary: Vocabulary | None = None,
    console: Any = None,
    callbacks: Sequence[Any] = (),
) -> Path:
    """Trains a tokenizer and a base on `texts` and writes both to `folder` as a checkpoint.

    Args:
        texts: documents; each ends with the end-of-sequence token and all are cut into rows of
            `recipe.context` tokens.
        recipe: architecture and schedule.
        folder: written in place; holds resumable checkpoints while training goes on.
        vocabulary: what the tokenizer has besides; None: nothing.
        console: a `rich.console.Console` for the progress bar.
        callbacks: of the trainer.

    Raises:
        DataError: fewer tokens than one batch.
    """
    import torch
    from datasets import Dataset
    from rich.console import Console
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PrinterCallback,
        ProgressCallback,
        TrainingArguments,
        default_data_collator,
    )

    from holdfast.training.callbacks import Progress
    from holdfast.training.checkpoint_folders import checkpoints_in, clear_leftovers, remove_folder
    from holdfast.training.trainers import RetentionTrainer

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(texts, recipe, vocabulary or Vocabulary())
    rows = pack_rows(texts, tokenizer, recipe.context)
    if len(rows) < recipe.batch_size:
        raise DataError(
            f"Expected texts with at least {recipe.batch_size} rows of {recipe.context} tokens to "
            f"pre-train on, got {len(rows)} rows."
        )
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.width,
            intermediate_size=recipe.mlp,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=4 * recipe.context,
            initializer_range=recipe.initializer_range,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=recipe.warmup_steps,
        weight_decay=recipe.weight_decay,
        adam_beta2=0.95,
        logging_steps=max(1, recipe.steps // 50),
        save_strategy="steps",
        save_steps=max(1, recipe.steps // 4),
        save_total_limit=1,
        report_to="none",
        seed=recipe.seed,
        disable_tqdm=False,
        dataloader_pin_memory=False,
    )
    trainer = RetentionTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    progress = Progress(console or Console(), "Pre-training a small base")
    for callback in (progress, *callbacks):
        trainer.add_callback(callback)
    checkpoint = trainer.whole_checkpoint(folder)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        progress.close()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in checkpoints_in(folder):
        remove_folder(path)
    clear_leftovers(folder)  # of an earlier process that was killed
    return folder


def make_tokenizer(texts: Sequence[str], recipe: BaseRecipe, vocabulary: Vocabulary) -> Any:
    """The tokenizer of a base: merges learned from the texts, without the words that are whole
    tokens anyway, and those words."""
    from tokenizers import AddedToken

    from holdfast.papers.worlds.embedded import train_tokenizer

    documents = list(texts)
    words = {word.strip() for word in vocabulary.words}
    if words:
        for number, text in enumerate(documents):
            documents[number] = " ".join(
                word for word in text.split(" ") if word.strip(".,:;?!") not in words
            )
    tokenizer = train_tokenizer(
        documents, vocab_size=recipe.vocab_size, special_tokens=vocabulary.special_tokens
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in vocabulary.words])
    tokenizer.add_tokens(
        [AddedToken(word, normalized=False, single_word=True) for word in vocabulary.letters]
    )
    if vocabulary.chat_template is not None:
        tokenizer.chat_template = vocabulary.chat_template
    return tokenizer


def pack_rows(texts: Sequence[str], tokenizer: Any, context: int) -> list[list[int]]:
    """Token rows of exactly `context` ids: the documents one after the other, each ended by the
    end-of-sequence token; the last stump is dropped."""
    stream: list[int] = []
    for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]:
        stream += [*ids, tokenizer.eos_token_id]
    return [stream[i : i + context] for i in range(0, len(stream) - context + 1, context)]
