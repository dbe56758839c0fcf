"""Vision-language models measured: on text with the figures of the language model inside, and on questions with images
beside a plain reference."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from data_files import jsonl
from holdfast.cli.main import main
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.kinds.multiple_choice import MultipleChoiceEntry
from holdfast.evaluation.kinds.multiple_choice_letters import LettersEntry
from holdfast.evaluation.measures import Subject, check, measure
from holdfast.evaluation.text.shared_prefix import Scorer
from holdfast.models import Loaded, load
from vision_models import (
    ARCHITECTURES,
    COLOURS,
    build_vision_tokenizer,
    image,
    write_vision_model,
)

OPTIONS = [" red", " green as grass", " blue", " It is white."]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each architecture."""
    folder = tmp_path_factory.mktemp("models")
    for architecture in ARCHITECTURES:
        write_vision_model(folder / architecture, architecture)
    return folder


@pytest.fixture(params=ARCHITECTURES)
def desk(request: pytest.FixtureRequest, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model and questions about pictures."""
    return prepared(models / request.param, tmp_path, monkeypatch)


@pytest.fixture
def llava(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(models / "llava", tmp_path, monkeypatch)


def prepared(model: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    shutil.copytree(model, place / "whole")
    (place / "pictures").mkdir()
    for colour in COLOURS:
        image(colour).save(place / "pictures" / f"{colour}.png")
    write("questions.jsonl", *(question(number) for number in range(6)))
    return place


def question(number: int, **columns: Any) -> dict[str, Any]:
    colour = list(COLOURS)[number % 4]
    row = {"prompt": f"<image>{number}. Which colour is it?", "options": OPTIONS, "answer": number % 4}
    return {**row, "image": f"pictures/{colour}.png", **columns}


def write(name: str, *rows: dict[str, Any]) -> str:
    jsonl(name, rows)
    return name


def choices(data: str = "questions.jsonl", **how: Any) -> MultipleChoiceEntry:
    return MultipleChoiceEntry(suite="keep", name="seen", data=data, **how)


def on(loaded: Loaded, **how: Any) -> Subject:
    return Subject(model=loaded.model, tokenizer=loaded.tokenizer, processor=loaded.processor, **how)


def reference(loaded: Loaded, text: str, picture: str, option: str) -> tuple[float, int]:
    """The log-likelihood of an option and its tokens, by the processor and the model's own logits, one text a row."""

    assert loaded.processor is not None
    processor, pictures = loaded.processor(), [Image.open(picture)]
    given, whole = (
        dict(processor(text=[t], images=[pictures], add_special_tokens=False, return_tensors="pt"))
        for t in (text, text + option)
    )
    ids = whole["input_ids"][0]
    start = int(given["input_ids"].shape[1])
    assert torch.equal(given["input_ids"][0], ids[:start])
    with torch.no_grad():
        logp = loaded.model(**whole).logits[0].log_softmax(-1)
    return float(sum(logp[t - 1, ids[t]] for t in range(start, len(ids)))), len(ids) - start


def test_options_behind_an_image_have_the_models_own_likelihoods(desk: Path) -> None:
    loaded = load("whole")
    found = measure(choices(), on(loaded))
    assert [row["images"] for row in found.rows[:2]] == [["red.png"], ["green.png"]]
    for number, row in enumerate(found.rows):
        asked = question(number)
        for value, option in zip(row["loglikelihoods"], OPTIONS, strict=True):
            nats, _ = reference(loaded, asked["prompt"], asked["image"], option)
            assert value == pytest.approx(nats, abs=2e-5)
        assert row["tokens"] == reference(loaded, asked["prompt"], asked["image"], OPTIONS[row["gold"]])[1]
    assert found.levels["acc"] == {"chance": 0.25}
    shown = {tuple(row["loglikelihoods"]) for row in found.rows}
    write("others.jsonl", *(question(n, image="pictures/white.png") for n in range(4)))
    others = measure(choices("others.jsonl"), on(loaded)).rows
    assert shown.isdisjoint(tuple(row["loglikelihoods"]) for row in others[:3])  # pictures matter
    assert others[0]["doc"] != found.rows[0]["doc"] and others[3]["doc"] == found.rows[3]["doc"]


def test_an_image_is_read_once_a_question_and_one_text_a_row_says_the_same(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, rows = load("whole"), []
    states = Scorer.states
    monkeypatch.setattr(Scorer, "states", lambda scorer, row: [rows.append(row), states(scorer, row)][1])
    together = measure(choices(), on(loaded)).rows
    # three to find out that branches stay apart, then a row a question
    assert [len(row.paths) for row in rows] == [2, 2, 1, *[4] * 6]
    rows.clear()
    monkeypatch.setattr("holdfast.evaluation.text.perplexity.takes_positions", lambda model: False)
    apart = measure(choices(), on(loaded)).rows
    assert len(rows) == 6 * 4
    for one, other in zip(together, apart, strict=True):
        assert one["loglikelihoods"] == pytest.approx(other["loglikelihoods"], abs=2e-5)


def test_a_question_that_is_not_finite_or_refused_leaves_its_neighbours_alone(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.evaluation import images

    loaded, encode = load("whole"), images.encode
    expected = [row["loglikelihoods"] for row in measure(choices(), on(loaded)).rows]

    def spoilt(prompt: Any, processor: Any) -> Any:
        made = encode(prompt, processor)
        if prompt.place.endswith("row 3"):
            made.of_images["pixel_values"].fill_(float("nan"))
        return made

    monkeypatch.setattr(images, "encode", spoilt)
    found = [row["loglikelihoods"] for row in measure(choices(), on(loaded)).rows]
    assert [all(map(math.isnan, nats)) for nats in found] == [number == 3 for number in range(6)]
    for number in (0, 1, 2, 4, 5):
        assert found[number] == pytest.approx(expected[number], abs=2e-5)

    def missing(prompt: Any, processor: Any) -> Any:
        made = encode(prompt, processor)
        if prompt.place.endswith("row 3"):
            made.of_images["pixel_values"] = made.of_images["pixel_values"][:0]
        return made

    monkeypatch.setattr(images, "encode", missing)
    with pytest.raises(DataError, match="row 3: the model cannot read its images"):
        measure(choices(), on(loaded))


def test_the_chat_template_puts_images_first(desk: Path) -> None:
    loaded = load("whole")
    write("plain.jsonl", *(question(n, prompt="Which colour?") for n in range(2)))
    rows = measure(choices("plain.jsonl", apply_chat_template=True), on(loaded)).rows
    nats, _ = reference(loaded, "user: <image>Which colour?\nassistant: ", "pictures/red.png", OPTIONS[0])
    assert rows[0]["loglikelihoods"][0] == pytest.approx(nats, abs=2e-5)
    assert rows[0]["question"] == "Which colour?"


def test_rows_with_and_without_images_in_one_file(desk: Path) -> None:
    loaded = load("whole")
    plain = {"prompt": "Two and two?", "options": [" four", " five of them"], "answer": 0}
    write("mixed.jsonl", {**plain, "images": []}, {**question(0), "image": None, "images": ["pictures/red.png"]})
    write("text.jsonl", plain)
    found = measure(choices("mixed.jsonl"), on(loaded)).rows
    assert found[0] == measure(choices("text.jsonl"), on(loaded)).rows[0]
    assert found[1]["loglikelihoods"] == pytest.approx(measure(choices(), on(loaded)).rows[0]["loglikelihoods"])


def test_two_images_and_bytes_in_parquet(desk: Path) -> None:
    from datasets import Dataset, Features, Image, List, Value

    loaded = load("whole")
    both = ["pictures/red.png", "pictures/blue.png"]
    rows = [question(0, prompt="<image>Here <image>there?", images=both) | {"image": None}, question(1)]
    write("two.jsonl", {k: v for k, v in rows[0].items() if k != "image"})
    features = Features(
        {"prompt": Value("string"), "options": List(Value("string")), "answer": Value("int64"), "images": List(Image())}
    )
    held = {k: v for k, v in rows[0].items() if k != "image"} | {"images": [image("red"), image("blue")]}
    Dataset.from_list([held], features=features).to_parquet("two.parquet")
    by_path, by_bytes = (measure(choices(name), on(loaded)).rows[0] for name in ("two.jsonl", "two.parquet"))
    assert by_path["loglikelihoods"] == by_bytes["loglikelihoods"]
    assert by_path["images"] == ["red.png", "blue.png"]


def test_letters_for_options(desk: Path) -> None:
    loaded = load("whole")
    entry = LettersEntry(suite="keep", name="letters", data="questions.jsonl")
    rows = measure(entry, on(loaded)).rows
    text = "<image>0. Which colour is it?\nA. red\nB. green as grass\nC. blue\nD. It is white.\nAnswer:"
    nats, tokens = reference(loaded, text, "pictures/red.png", "A")
    assert tokens == 1
    assert rows[0]["nats"] == pytest.approx(-nats, abs=2e-5)
    assert rows[0]["images"] == ["red.png"] and 0 < rows[0]["mass"] < 1


def test_other_pixels_are_another_question(llava: Path) -> None:
    Path("suite.yaml").write_text(
        "keep:\n  - {multiple_choice: questions.jsonl}\n  - {multiple_choice_letters: questions.jsonl, name: l}\n"
    )
    words = ["evaluate", "whole", "--suite", "suite.yaml", "--output_dir", "out"]
    samples = Path("out/whole/keep.questions.samples.jsonl")
    assert main(words) == 0
    before, when = samples.read_text(), samples.stat().st_mtime_ns
    assert main(words) == 0
    assert samples.stat().st_mtime_ns == when
    image("blue").save("pictures/red.png")
    assert main(words) == 0
    rows = [[json.loads(line) for line in text.splitlines()] for text in (before, samples.read_text())]
    changed = [number for number, (one, other) in enumerate(zip(*rows, strict=True)) if one["doc"] != other["doc"]]
    assert changed == [0, 4]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def bomb(path: Path) -> None:

    Image.new("1", (10_000, 9_000)).save(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), r"got no such image: pictures/green\.png .* in row 1 and 1 more"),
        (cut, r"green\.png is cut short or damaged .* in row 1"),
        (lambda path: path.write_text("no image"), r"green\.png is not an image that Pillow can read in row 1"),
        (bomb, r"10,000 x 9,000 pixels, .* Make it smaller in row 1"),
    ],
)
def test_images_that_cannot_be_used(change: Any, said: str, llava: Path) -> None:
    change(llava / "pictures" / "green.png")
    loaded = load("whole")
    with pytest.raises(DataError, match=rf"questions\.jsonl: expected readable images.*{said}"):
        check(choices(), loaded.tokenizer, loaded.processor)


@pytest.mark.parametrize(
    ("columns", "how", "said"),
    [
        ({"prompt": "Which?"}, {}, "1 image, but its text says <image> nowhere in row 0"),
        ({"prompt": "<image> or <image>?"}, {}, "1 image, but its text says <image> 2 times in row 0"),
        ({"prompt": "<image> or <image>?"}, {"apply_chat_template": True}, "have 2 parts of type image to fill"),
        (
            {"image": None},
            {},
            "an image for each place in the prompt, got no image, although the prompt contains <image>",
        ),
        ({"image": "http://x/y.png"}, {}, "is a URL"),
    ],
)
def test_images_and_places_that_do_not_match(columns: Any, how: Any, said: str, llava: Path) -> None:
    write("wrong.jsonl", question(0, **columns))
    loaded = load("whole")
    with pytest.raises(DataError, match=said):
        check(choices("wrong.jsonl", **how), loaded.tokenizer, loaded.processor)


def test_templates_without_a_slot_and_models_without_eyes(llava: Path, model_folder: Path) -> None:
    template = Path("whole/chat_template.jinja")
    template.write_text(template.read_text().replace("<image>", ""))
    loaded = load("whole")
    with pytest.raises(DataError, match=r"questions\.jsonl, row 0: the chat template writes no slots \(<image>\)"):
        check(choices(apply_chat_template=True), loaded.tokenizer, loaded.processor)
    with pytest.raises(DataError, match=r"row 0 has images \(column 'image'\), but the model reads only text"):
        check(choices(), loaded.tokenizer)
    Path("whole/processor_config.json").unlink()
    with pytest.raises(ModelError, match="Expected a processor beside the vision-language model at whole"):
        check(choices(), loaded.tokenizer, load("whole").processor)


def test_an_image_is_never_cut(llava: Path) -> None:
    write("long.jsonl", question(0, prompt="<image>" + "Which colour is it? " * 60))
    loaded = load("whole")
    with pytest.raises(DataError, match=r"long\.jsonl, row 0: expected at most 128 tokens .*, got \d+, including"):
        measure(choices("long.jsonl"), on(loaded))


def test_a_processor_that_is_not_the_models(llava: Path) -> None:
    settings = json.loads(Path("whole/processor_config.json").read_text())
    Path("whole/processor_config.json").write_text(json.dumps({**settings, "patch_size": 4}))
    loaded = load("whole")
    with pytest.raises(DataError, match=r"row 0: the model cannot read its images: .* processor in the model's folder"):
        measure(choices(), on(loaded))


# ----------------------------------------------------------------------------------------- kinds that ask by text alone


def test_images_beside_an_entry_that_asks_by_text(tmp_path: Path) -> None:
    from holdfast.evaluation.kinds.classification import ClassificationEntry, read_classes
    from holdfast.evaluation.kinds.perplexity import PerplexityEntry, documents_of

    image("red").save(tmp_path / "red.png")
    rows: list[dict[str, Any]] = [{"image": None}, {"image": "red.png"}]
    data = tmp_path / "seen.jsonl"
    jsonl(data, [{**row, "text": "It is red.", "label": 0} for row in rows])
    said = r"seen.jsonl, row 1 holds an image \(column 'image'\), but 'seen' uses text only. .*`multiple_choice`"
    with pytest.raises(DataError, match=said):
        documents_of(PerplexityEntry(suite="keep", name="seen", data=str(data)), build_vision_tokenizer())
    classes: dict[str, Any] = {"suite": "keep", "name": "seen", "data": str(data), "options": (" red", " blue")}
    with pytest.raises(DataError, match=said):
        read_classes(ClassificationEntry(**classes, prompt="<image> {text} Colour:", label="label"))
    texts = read_classes(ClassificationEntry(**classes, prompt="{text} Colour:", label="label"))
    assert [(text.prompt, text.gold) for text in texts] == [("It is red. Colour:", 0)] * 2, "who asks by text alone may"
