"""Rows with images: found beside the data file, put where the text has them, and refused by file and row."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from data_files import jsonl
from holdfast.data import vision
from holdfast.data.formats import rows_by_name, standardise
from holdfast.data.sources import data_files, load_rows
from holdfast.errors import DataError
from vision_models import COLOURS, build_processor, build_vision_tokenizer, image


@pytest.fixture
def processor():
    return build_processor("llava")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    for colour in COLOURS:
        image(colour).save(tmp_path / "pictures" / f"{colour}.png")
    image("red", size=(64, 48)).save(tmp_path / "pictures" / "red.jpg")
    return tmp_path


def write(folder: Path, *rows: dict, name: str = "train.jsonl") -> str:
    return str(jsonl(folder / name, rows))


def read(path: str, processor):
    return rows_by_name(processor)(path)


def asked(content, answer="Red.", **columns) -> dict:
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}], **columns}


def written(row) -> list[str]:
    """The first message's parts: texts, and "image" for an image."""
    message = (row.get("messages") or row["prompt"])[0]
    return [part.get("text", part["type"]) for part in message["content"]]


SLOT, WORDS = {"type": "image"}, {"type": "text", "text": "Which?"}


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (asked([SLOT, WORDS], images=["pictures/red.png"]), ["image", "Which?"]),
        (asked("Which?", images=["pictures/red.png", "pictures/blue.png"]), ["image", "image", "Which?"]),
        (asked("Which, <image> this?", images=["pictures/red.png"]), ["Which, ", "image", " this?"]),
        (asked([{"type": "image", "path": "pictures/red.png"}, WORDS]), ["image", "Which?"]),
        ({"question": "Which?", "answer": "Red.", "image": "pictures/red.png"}, ["image", "Which?"]),
        (
            {
                "conversations": [{"from": "human", "value": "<image>\nWhich?"}, {"from": "gpt", "value": "Red."}],
                "image": "pictures/red.png",
            },
            ["image", "\nWhich?"],
        ),
    ],
)
def test_images_go_where_the_text_has_them(row, parts, folder, processor):
    rows, _ = read(write(folder, row, asked([WORDS]) if "messages" in row else row), processor)
    assert written(rows[0]) == parts
    assert len(rows[0]["images"]) == parts.count("image")
    assert rows[0]["images"][0].getpixel((0, 0))[:3] == COLOURS["red"]
    assert rows["row"][:] == [0, 1]


def test_plain_text_has_the_processors_own_token(folder, processor):
    row = {"prompt": "<image>Which colour?", "completion": " Red.", "image": "pictures/red.png"}
    rows, layout = read(write(folder, row), processor)
    assert layout == "prompt_completion" and rows[0]["prompt"] == row["prompt"]
    with pytest.raises(DataError, match=r"train.jsonl, line 1: 1 image, but its text says <image> nowhere"):
        read(write(folder, {**row, "prompt": "Which?"}), processor)


def test_plain_text_has_what_the_template_puts_around_an_image(folder):
    """Qwen's processor takes a bare `<|image_pad|>` too, which the model was not trained with."""
    own = build_processor("qwen2_vl")
    slot = "<|vision_start|><|image_pad|><|vision_end|>"
    row = {"prompt": "<image>Which colour?", "completion": " Red.", "image": "pictures/red.png"}
    for prompt in ("<image>Which colour?", f"{slot}Which colour?"):
        rows, _ = read(write(folder, {**row, "prompt": prompt}), own)
        assert rows[0]["prompt"] == f"{slot}Which colour?"
    own.chat_template = None
    rows, _ = read(write(folder, row), own)
    assert rows[0]["prompt"] == "<|image_pad|>Which colour?"
    with pytest.raises(DataError, match=r"1 image, but its text says <\|image_pad\|> 2 times"):
        read(write(folder, {**row, "prompt": "<image><image>Which?"}), own)


def test_parquet_with_bytes_and_a_saved_data_set(folder, processor):
    from datasets import Dataset, Features, List, Value
    from datasets import Image as Kind

    features = Features({"question": Value("string"), "answer": Value("string"), "images": List(Kind())})
    held = Dataset.from_list(
        [{"question": "Which?", "answer": "Green.", "images": [image("green")]}], features=features
    )
    held.to_parquet(folder / "train.parquet")
    held.save_to_disk(folder / "saved")
    for name in ("train.parquet", "saved"):
        rows, _ = standardise(load_rows(str(folder / name)), processor)
        assert written(rows[0]) == ["image", "Which?"]
        assert rows[0]["images"][0].getpixel((3, 3)) == COLOURS["green"]


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


@pytest.mark.parametrize("name", ["red.png", "red.jpg"])
def test_a_truncated_image_is_named_by_file_and_line(name, folder, processor):
    cut(folder / "pictures" / name, 0.7)
    path = write(folder, asked("?", images=["pictures/blue.png"]), asked("?", images=[f"pictures/{name}"]))
    with pytest.raises(DataError, match=rf"1 of 2 rows.*\n.*train.jsonl, line 2: .*{name} is cut short or damaged"):
        read(path, processor)


def test_pixels_that_end_early_within_whole_chunks(folder, processor):
    """The file is whole by its structure; only who decodes all of it sees that pixels are missing."""
    import struct
    import zlib

    path = folder / "pictures" / "half"
    Image.effect_noise((64, 64), 60).convert("RGB").save(path, "PNG")
    content = path.read_bytes()
    begin = content.index(b"IDAT") - 4
    size = struct.unpack(">I", content[begin : begin + 4])[0]
    body = b"IDAT" + content[begin + 8 : begin + 8 + size // 2]
    half = struct.pack(">I", size // 2) + body + struct.pack(">I", zlib.crc32(body))
    path.write_bytes(content[:begin] + half + content[begin + 12 + size :])
    with Image.open(path) as opened:
        opened.verify()
    with pytest.raises(DataError, match="half is cut short or damaged"):
        read(write(folder, asked("?", images=["pictures/half"])), processor)


def test_a_missing_image(folder, processor):
    path = write(folder, asked("?", images=["pictures/purple.png"]))
    with pytest.raises(DataError, match=rf"line 1: no such image: pictures/purple.png \(looked in {folder}\)"):
        read(path, processor)


def test_a_decompression_bomb_is_refused_by_its_size(folder, processor, monkeypatch):
    Image.new("1", (12_000, 12_000)).save(folder / "pictures" / "huge.png")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(DataError, match=r"line 1: .*huge.png has 12,000 x 12,000 pixels.*Make it smaller"):
        read(write(folder, asked("?", images=["pictures/huge.png"])), processor)


def test_what_is_no_image(folder, processor):
    (folder / "pictures" / "words.png").write_text("words")
    with pytest.raises(DataError, match=r"words.png is not an image that Pillow can read"):
        read(write(folder, asked("?", images=["pictures/words.png"])), processor)
    with pytest.raises(DataError, match="is a URL"):
        read(write(folder, asked("?", images=["https://example.org/a.png"])), processor)
    with pytest.raises(DataError, match="an image is int, expected a path"):
        read(write(folder, asked("?", images=[7])), processor)


@pytest.mark.parametrize(("images", "said"), [(["red"] * 2, "2 images"), ([], "no images")])
def test_numbers_that_do_not_match(images, said, folder, processor):
    row = asked([SLOT, WORDS], images=[f"pictures/{c}.png" for c in images])
    with pytest.raises(DataError, match=f"line 2: {said}, but its messages have 1 part of type image to fill"):
        read(write(folder, asked("?", images=["pictures/red.png"]), row), processor)


@pytest.mark.parametrize(
    "row",
    [
        asked("<image>\nWhich?", images=[]),
        asked("Which?", "The <image>.", images=[]),
    ],
)
def test_a_place_in_the_text_that_no_image_belongs_to(row, folder, processor):
    path = write(folder, asked("?", images=["pictures/red.png"]), row)
    with pytest.raises(DataError, match=r"line 2: its text has <image> once without a matching image"):
        read(path, processor)


@pytest.mark.parametrize(
    "row",
    [
        asked("<image>\nWhich?", picture="pictures/red.png"),
        {"text": "<image> is red."},
    ],
)
def test_places_without_any_image_in_the_data(row, folder, processor):
    """The column of the images has another name: what would be trained is blind."""
    with pytest.raises(DataError, match=r"train.jsonl, line 1: its text has <image> once.* a column 'images'"):
        read(write(folder, row), processor)
    tokenizer = build_vision_tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    read(write(folder, row, name="text.jsonl"), tokenizer)  # for a model of text the words are words


def test_a_template_that_drops_the_slots_of_one_role(folder, processor):
    """A row like the first ones would not show it."""
    turn = "{% if p.type == 'text' %}{{ p.text }}{% elif m.role == 'user' %}<image>{% endif %}"
    processor.chat_template = f"{{% for m in messages %}}{{% for p in m.content %}}{turn}{{% endfor %}}{{% endfor %}}"
    good = asked("?", images=["pictures/red.png"])
    read(write(folder, good, good), processor)
    bad = {"messages": [{"role": "system", "content": [SLOT, WORDS]}, *good["messages"]], "images": good["images"]}
    with pytest.raises(DataError, match=r"line 2: the chat template writes no slots \(<image>\) for 1 image"):
        read(write(folder, good, bad), processor)
    processor.chat_template = processor.chat_template.replace("<image>", "<image><image>")
    with pytest.raises(DataError, match=r"line 1: the chat template writes 2 slots \(<image>\) for 1 image"):
        read(write(folder, good), processor)


def test_rows_of_a_part_keep_their_numbers(folder, processor):
    path = write(folder, *(asked("Which?", images=[f"pictures/{c}.png"]) for c in COLOURS))
    rows, _ = standardise(load_rows(path).shuffle(seed=1).select([2, 0]), processor, read_from=data_files(path))
    for row, number in zip(rows, rows["row"], strict=True):
        assert row["images"][0].getpixel((0, 0)) == list(COLOURS.values())[number]


@pytest.mark.parametrize("row", [asked("?", images=["pictures/red.png"]), asked([SLOT, WORDS])])
def test_images_for_a_model_that_takes_text_only(row, folder):
    tokenizer = build_vision_tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    with pytest.raises(DataError, match=r"train.jsonl, line 1.*(the model reads only text|are for vision-language)"):
        read(write(folder, row), tokenizer)


def test_the_hash_of_images_is_of_their_content(folder, processor):
    path = write(folder, asked("?", images=["pictures/red.png"]))
    before = vision.content_of_images(read(path, processor)[0])
    image("blue").save(folder / "pictures" / "red.png")
    assert vision.content_of_images(read(path, processor)[0]) != before


def test_what_is_not_read_of_rows_with_images_is_counted(folder, processor):
    row = asked([SLOT, WORDS], images=["pictures/red.png"], system="Be brief.", id=3)
    row["messages"][1]["weight"] = 0
    rows, counts = load_rows(write(folder, row)), {}
    out, _ = standardise(rows, processor, read_from=[folder / "train.jsonl"], not_read=counts)
    assert counts == {"id": 1, "weight of messages": 1}
    assert [message["role"] for message in out[0]["messages"]] == ["system", "user", "assistant"]
    text = {"prompt": "<image>Which?", "completion": "Red.", "image": "pictures/red.png", "system": "Be brief."}
    standardise(load_rows(write(folder, text)), processor, read_from=[folder / "train.jsonl"], not_read=(counts := {}))
    assert counts == {"system": 1}
    said = []
    rows_by_name(processor, say=said.append)(write(folder, asked("Which?", weight=1), name="text.jsonl"))
    assert said == [f"Not read of {folder / 'text.jsonl'}: weight (1 row)."]
