"""Models and batches with images: what the loss reads, what is trained, what a checkpoint's names are."""

from __future__ import annotations

import pytest
import torch
from cases import history, make_trainer, weights

from holdfast.errors import ConfigError, DataError, StorageError
from holdfast.models import with_plain_messages
from holdfast.ops.heads import check_head, describe_head, project, run_backbone
from holdfast.training.diverged import describe_samples
from holdfast.training.image_batches import ImageCollator, of_the_model
from holdfast.training.whole_checkpoints import take_stored_names
from vision_models import (
    ARCHITECTURES,
    build_processor,
    build_vision_model,
    build_vision_tokenizer,
    image,
    image_batch,
    vision_rows,
)

SEEN = (*ARCHITECTURES, "qwen2_vl")


@pytest.mark.parametrize("architecture", SEEN)
def test_backbone_and_head_are_the_models_own_logits(architecture):
    model, batch = build_vision_model(architecture).eval(), image_batch(architecture)
    with torch.no_grad():
        own = model(**batch).logits
        ours = project(run_backbone(model, **batch).flatten(0, 1), describe_head(model))
        assert float((ours.view_as(own) - own).abs().max()) < 1e-5
        other = model(**{**batch, "pixel_values": -batch["pixel_values"]}).logits
    assert float((other - own).abs().max()) > 1e-4  # the image is seen
    ids = batch.pop("input_ids")
    assert check_head(model, ids, **batch) < 1e-5


@pytest.mark.parametrize("architecture", SEEN)
def test_a_checkpoint_is_loaded_by_the_names_it_was_saved_with(architecture, tmp_path):
    from safetensors.torch import load_file

    build_vision_model(architecture, seed=1).save_pretrained(tmp_path)
    model = build_vision_model(architecture, seed=2)
    take_stored_names(model)
    missing, unexpected = model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert not missing and not unexpected
    wanted = dict(build_vision_model(architecture, seed=1).named_parameters())
    assert all(torch.equal(p, wanted[n]) for n, p in model.named_parameters())


def test_a_checkpoint_that_lacks_a_tensor_is_not_continued(tmp_path):
    from safetensors.torch import load_file, save_file

    trainer = make_trainer(tmp_path, {}, images="llava", save_strategy="steps", save_steps=2)
    trainer.train()
    (tmp_path / "run/checkpoint-4/manifest.json").unlink()
    place = tmp_path / "run/checkpoint-4/model.safetensors"
    held = load_file(place)
    held.pop("language_model.lm_head.weight")
    save_file(held, place, metadata={"format": "pt"})
    again = make_trainer(tmp_path, {}, images="llava")
    with pytest.raises(StorageError, match=r"all tensors of the model, but lm_head.weight cannot be found"):
        again._load_from_checkpoint(str(tmp_path / "run/checkpoint-4"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_anchor_in_a_folder_is_found_by_its_names(architecture, tmp_path):
    build_vision_model(architecture, seed=11).save_pretrained(tmp_path / "previous")
    method = {"sfa": {"p": 1.0, "beta": 1.0, "reference": str(tmp_path / "previous")}}
    trainer = make_trainer(tmp_path, method, images=architecture)
    trainer.train()
    wanted = dict(build_vision_model(architecture, seed=11).named_parameters())
    assert all(torch.equal(p, wanted[n]) for n, p in weights(trainer).items())


# ------------------------------------------------------------------------------------------------------------- batches


def collator(architecture: str = "llava", *, only: bool | None = None, **settings):
    from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

    made = DataCollatorForVisionLanguageModeling(build_processor(architecture), **settings)
    return ImageCollator(made, completion_only=only)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_labels_are_trls_but_for_the_tokens_of_images(architecture):
    rows = [vision_rows(8)[i] for i in range(8)]
    ours = collator(architecture)
    wanted, found = ours.collate([dict(row) for row in rows]), ours(rows)
    seen = torch.isin(found["input_ids"], ours.placeholders)
    assert seen.any(1).tolist() == [n % 4 != 3 for n in range(8)]
    assert found.keys() == {*wanted, "row"}
    for name in wanted:
        expected = wanted[name].masked_fill(seen, -100) if name == "labels" else wanted[name]
        assert torch.equal(found[name], expected), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_of_several_layouts_is_those_of_each(architecture):
    """Conversations with images, a pair of prompt and completion, and tokens that replay brings."""
    chat, text = vision_rows(4)[0], vision_rows(4)[3]
    pair = {"prompt": "<image>Which?", "completion": " Blue.", "images": [image("blue")]}
    tokens = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "images": None, "messages": None}
    ours = collator(architecture)
    whole = ours([tokens, chat, pair, text])
    model = build_vision_model(architecture).eval()
    labels = whole.pop("labels")
    with torch.no_grad():
        together = model(**of_the_model(whole)).logits.log_softmax(-1)
    at = 0
    for group in ([tokens], [chat, text], [pair]):
        part = ours(group)
        expected = part.pop("labels")
        with torch.no_grad():
            alone = model(**of_the_model(part)).logits.log_softmax(-1)
        rows, width = expected.shape
        assert torch.equal(labels[at : at + rows, :width], expected)
        assert (labels[at : at + rows, width:] == -100).all()
        kept = part["attention_mask"].bool()
        assert float((together[at : at + rows, :width] - alone)[kept].abs().max()) < 1e-4
        at += rows
    assert (ours([pair])["labels"] != -100).sum() < ours([chat])["attention_mask"].sum()


def test_rows_are_cut_after_their_images_and_never_within():
    rows = [vision_rows(1)[0]]
    assert collator(max_length=12)(rows)["input_ids"].shape == (1, 12)
    with pytest.raises(DataError, match=r"row 1 of the training data: max_length=8 tokens would cut an image in two"):
        collator(max_length=8)([{**rows[0], "row": 0}])


def test_what_a_processor_refuses_names_the_row():
    row = {"text": "<image><image>Two?", "images": [image("red")], "row": 4}
    with pytest.raises(DataError, match=r"row 5 of the training data: the processor \(LlavaProcessor\) cannot make"):
        collator()([row])


def test_a_sample_that_diverged_is_named_by_its_row():
    batch = collator()([{**row, "row": 10 + n} for n, row in enumerate(vision_rows(2))])
    tokenizer = build_vision_tokenizer()
    one, other = describe_samples(batch, None, data=vision_rows(2), tokenizer=tokenizer, limit=4)
    assert one.startswith("row 11 of the training data: ") and other.startswith("row 12 of the training data: ")
    assert one.count("<image>") == 1 and "Which colour" in one, "one image is one place, however many tokens it has"


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("tokens", ["trained", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_teacher_sees_the_images(architecture, tokens, tmp_path):
    """A student that has not moved has a divergence of nothing, at the tokens of images too."""
    method = {"label_annealing": {"weight": 1.0, "tokens": tokens}}
    for peft in (False, True):
        trainer = make_trainer(tmp_path, method, images=architecture, peft=peft, logging_steps=1)
        assert trainer._teacher.name == ("adapter_off" if peft else "online")
        trainer.train()
        kl = history(trainer, "kl")
        assert kl[0] == 0.0 and kl[-1] > 1e-4


def test_what_does_not_go_with_images(tmp_path):
    with pytest.raises(ConfigError, match=r"replay.unit: expected examples"):
        make_trainer(tmp_path, {"replay": {"data": "<replay>"}}, images="llava")
    with pytest.raises(ConfigError, match="got 'cached'"):
        make_trainer(tmp_path, {"label_annealing": {"teacher": "cached"}}, images="llava")


def test_only_what_a_pattern_matches_is_trained(tmp_path):
    before = dict(build_vision_model("llava").named_parameters())
    trainer = make_trainer(tmp_path, {"l2": {"coefficient": 0.1}}, images="llava", train_only=["multi_modal_projector"])
    trainer.train()
    changed = {n for n, p in trainer.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if "multi_modal_projector" in n}
    with pytest.raises(ConfigError, match="'projektor' matches no parameter"):
        make_trainer(tmp_path, {}, images="llava", train_only=["projektor"])


def test_a_template_that_reads_parts_only_takes_plain_messages_too():
    tokenizer = build_vision_tokenizer()
    tokenizer.chat_template = build_processor("llava").chat_template
    plain = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes"}]
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in plain]
    lost, wanted = (tokenizer.apply_chat_template(m, tokenize=False) for m in (plain, parts))
    assert "Hello" not in lost
    tokenizer = with_plain_messages(tokenizer)
    assert tokenizer.apply_chat_template(plain, tokenize=False) == wanted
    assert tokenizer.apply_chat_template(parts, tokenize=False) == wanted
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert with_plain_messages(tokenizer).chat_template.startswith("{% for")
