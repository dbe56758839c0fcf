"""Rows matched by token: tokenizers read as JSON, maps, views of them, and the policies for what does not match."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from elements import whole
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from holdfast.checkpoints.dtypes import decode, encode
from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.parents import Findings, Parents
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.sources import Entry
from holdfast.checkpoints.vocabulary import (
    RowMappedSource,
    align_vocabularies,
    row_map,
    same_tokenizer_files,
    vocabulary,
    vocabulary_tensors,
    why_unreadable,
)
from holdfast.errors import ModelError, ShapeError
from tiny import build_tokenizer

# ----------------------------------------------------------------------------------------------------------- tokenizers


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    """A trained tokenizer with tokens added later, as transformers saves it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = build_tokenizer(300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", '"merges": [']})
    tokenizer.add_tokens(["holdfast"])
    tokenizer.save_pretrained(folder)
    return folder, tokenizer


def test_a_saved_tokenizer_is_read_as_transformers_reads_it(tokenizer_folder):
    folder, tokenizer = tokenizer_folder
    assert vocabulary(folder) == tokenizer.get_vocab()


def test_the_order_of_keys_does_not_matter(tokenizer_folder, tmp_path):
    folder, tokenizer = tokenizer_folder
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = dict(sorted(content["model"].items()))
    content = dict(reversed(content.items()))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content, indent=1))
    assert vocabulary(tmp_path) == tokenizer.get_vocab()


def test_other_files(tmp_path):
    """Word pieces, byte pairs beside added tokens, unigrams; and what is no vocabulary."""

    def folder(name, **files):
        (tmp_path / name).mkdir()
        for file, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name / file.replace("__", ".")).write_text(text, encoding="utf-8")
        return tmp_path / name

    pairs = folder("gpt", vocab__json={"a": 0, "b": 1}, added_tokens__json={"<x>": 7})
    assert vocabulary(pairs) == {"a": 0, "b": 1, "<x>": 7}
    assert vocabulary(folder("bert", vocab__txt="[PAD]\n\n##é\n")) == {"[PAD]": 0, "": 1, "##é": 2}
    unigram = {
        "added_tokens": [{"id": 3, "content": "<x>"}],
        "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁a", -1.5]]},
    }
    assert vocabulary(folder("t5", tokenizer__json=unigram)) == {"<unk>": 0, "▁a": 1, "<x>": 3}
    (folder("piece") / "tokenizer.model").write_bytes(b"\x0a\x0b")
    assert vocabulary(tmp_path / "piece") is None and "tokenizer.model" in why_unreadable(tmp_path / "piece")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        vocabulary(folder("cut", tokenizer__json='{"added_tokens": [], "model": {"vocab": {"a"'))


def test_same_files_need_no_parsing(tmp_path):
    for name, content in (("one", "{}"), ("two", "{}"), ("three", "{ }")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(content)
    one, two, three = (tmp_path / n for n in ("one", "two", "three"))
    assert same_tokenizer_files(one, two) and not same_tokenizer_files(one, three)
    assert not same_tokenizer_files(tmp_path, tmp_path), "which has none"
    (two / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"9": {"content": "<x>"}}}))
    assert not same_tokenizer_files(one, two)


@pytest.mark.parametrize(
    ("config", "shapes", "expected"),
    [
        (
            {"vocab_size": 99},
            {"model.embed_tokens.weight": (32, 4), "lm_head.weight": (32, 4), "lm_head.bias": (32,), "q": (32, 4)},
            ["model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"],
        ),
        ({"vocab_size": 32}, {"transformer.wte.weight": (32, 4), "ln_1.weight": (32,)}, ["transformer.wte.weight"]),
        (
            {},
            {"wte.weight": (32, 4), "ff_out.weight": (32, 4), "blocks.0.ff_out.weight": (4, 16)},
            ["wte.weight", "ff_out.weight"],
        ),
        ({}, {"x.weight": (3, 3), "scale": ()}, []),
    ],
)
def test_which_tensors_hold_tokens(config, shapes, expected):
    entries = {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}
    assert vocabulary_tensors(config, entries) == expected


# ------------------------------------------------------------------------------------------------------------- row maps


def test_rows_by_token():
    target = {"a": 0, "b": 1, "<new>": 2, "c": 3}
    source = {"b": 0, "a": 1, "c": 5, "<old>": 3}
    found = row_map(target, 6, source, 7)
    assert found.rows.tolist() == [1, 0, -1, 5, 4, -1]  # 4: neither has a token there; 5: a token of the source
    assert found.missing == ("<new>",) and found.extra == ("<old>",) and not found.identity


@given(st.permutations(range(12)), st.integers(0, 12), st.integers(0, 12))
def test_rows_hold_the_same_token(order, target_rows, source_rows):
    target, source = {str(i): i for i in range(12)}, {str(t): i for i, t in enumerate(order)}
    found = row_map(target, target_rows, source, source_rows)
    for i, row in enumerate(found.rows.tolist()):
        assert row == (source[str(i)] if source[str(i)] < source_rows else -1)
    assert len(found.missing) == int((found.rows < 0).sum())
    assert set(found.extra) == {t for t, i in source.items() if i < source_rows and target[t] >= target_rows}


# ---------------------------------------------------------------------------------------------------------------- views


class Memory:
    """A source of arrays."""

    def __init__(self, dtype: str = "F32", computed: bool = False, **tensors: np.ndarray) -> None:
        self.label, self.folder = "memory", Path("memory")
        self.computed = computed
        self.kind = DTYPES[dtype]
        self.raw = {}
        for name, values in tensors.items():
            self.raw[name] = np.empty(values.size, self.kind.storage)
            encode(np.ascontiguousarray(values.reshape(-1)), self.kind, self.raw[name])
        self.entries = {n: Entry(n, self.kind, v.shape, Path("model.safetensors"), 0) for n, v in tensors.items()}
        self.reads = 0

    def read(self, name, start, stop, buffer):
        self.reads += 1
        piece = self.raw[name][start:stop]
        assert 0 <= start <= stop <= len(self.raw[name])
        if self.computed:
            return Operand(decode(piece, self.kind), DTYPES["F64" if self.kind.name == "F64" else "F32"])
        memory = buffer[: piece.nbytes].view(self.kind.storage)
        memory[:] = piece
        return Operand(memory, self.kind)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("lacking", ["zeros", "rows of another"])
def test_a_view_reads_any_stretch(lacking, computed):
    rng = np.random.default_rng(0)
    order = np.array([2, -1, 0, 1, -1])
    source = Memory("BF16", computed, emb=rng.standard_normal((3, 4)))
    fallback = Memory("F32", emb=rng.standard_normal((5, 4))) if lacking != "zeros" else None
    view = RowMappedSource(source, order, ["emb"], fallback=fallback)
    assert view.entries["emb"].shape == (5, 4) and view.entries["emb"].dtype is source.kind
    expected = whole(fallback, "emb") if fallback else np.zeros((5, 4))
    expected[order >= 0] = whole(source, "emb")[order[order >= 0]]
    for start in range(21):
        for stop in range(start, 21):
            stretch = view.read("emb", start, stop, np.empty((stop - start) * 2, np.uint8))
            np.testing.assert_array_equal(decode(*stretch), expected.reshape(-1)[start:stop])


def test_rows_that_do_not_fit_are_listed():
    source = Memory(emb=np.zeros((3, 2)), head=np.zeros((4, 2)))
    with pytest.raises(ShapeError, match="head") as error:
        RowMappedSource(source, np.array([0, 3]), ["emb", "head"], fallback=Memory(head=np.zeros((3, 2))))
    assert "emb: expected 4 rows" in str(error.value)


# ------------------------------------------------------------------------------------------------------------ alignment


def checkpoint(
    folder: Path, tokens: list[str] | None, *, rows: int | None = None, offset: float = 0, columns: int = 2, order=None
) -> CheckpointReader:
    """Embeddings whose row of token number t of "abcdef..." is `offset + t`, in the order of `tokens`."""
    folder.mkdir()
    held = tokens or []
    values = np.full((rows or len(held), columns), -1.0, np.float32)
    for i, token in enumerate(held):
        values[i] = offset + ord(token[0]) - ord("a")
    save_file(
        {"model.embed_tokens.weight": values, "model.norm.weight": np.ones(3, np.float32)}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(values), "tie_word_embeddings": True}))
    if tokens is not None:
        (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    return CheckpointReader(folder)


def align(sources, policy="error", *, layout=0, base=None, members=None, lacking="layout"):
    findings = Findings()
    members = range(len(sources)) if members is None else members
    parents = Parents(
        sources=tuple(sources),
        roles=tuple(f"model {i}" for i in range(len(sources))),
        layout=layout,
        base=base,
        extras={i: 0 for i in range(len(sources)) if i not in members},
    )
    views = align_vocabularies(parents, policy, findings, lacking=lacking).sources
    rows = (
        [whole(view, "model.embed_tokens.weight")[:, 0].tolist() for view in views] if not findings.problems else None
    )
    return rows, findings.problems, findings.notes


def test_the_same_vocabulary_is_left_alone(tmp_path):
    sources = (checkpoint(tmp_path / "a", list("abc")), checkpoint(tmp_path / "b", list("abc"), offset=10))
    findings = Findings()
    parents = align_vocabularies(Parents(sources=sources, roles=("a", "b")), "error", findings)
    assert parents.sources == sources and findings.notes == []


def test_another_order_and_padding_need_no_policy(tmp_path):
    sources = [
        checkpoint(tmp_path / "a", list("abc"), rows=5),
        checkpoint(tmp_path / "b", list("cab"), rows=4, offset=10),
    ]
    found, problems, notes = align(sources)
    assert problems == [] and len(notes) == 1 and "model 1" in notes[0]
    assert found == [[0, 1, 2, -1, -1], [10, 11, 12, -1, -1]]


def test_without_a_policy_every_difference_is_listed(tmp_path):
    sources = [
        checkpoint(tmp_path / "a", list("abc")),
        checkpoint(tmp_path / "b", list("ab")),
        checkpoint(tmp_path / "c", list("abcde")),
    ]
    _, problems, _ = align(sources)
    assert len(problems) == 2 and "'c'" in problems[0] and "'d', 'e'" in problems[1]
    assert all("--vocabulary keep" in p and "--vocabulary zero" in p for p in problems)


@pytest.mark.parametrize(
    ("tokens", "policy", "request_", "expected"),
    [
        # c: the base lacks it, d: the model lacks it
        ("abd abcd cba", "keep", {"layout": 1, "base": 0}, [[0, 1, 12, 13], [10, 11, 12, 13], [20, 21, 12, 13]]),
        # c: no delta without a base; d: a delta of 0 for one
        (
            "abd abcd cba dcba",
            "zero",
            {"layout": 1, "base": 0},
            [[0, 1, 12, 3], [10, 11, 12, 13], [20, 21, 12, 3], [30, 31, 12, 33]],
        ),
        ("abc ab abc", "zero", {}, [[0, 1, 2], [10, 11, 2], [20, 21, 22]]),  # without a base the layout's row
        ("abc ab", "keep", {"base": 1, "lacking": "zeros"}, [[0, 1, 2], [10, 11, 0]]),  # residuals
        ("abc abc ba", "keep", {"members": [0, 1]}, [[0, 1, 2], [10, 11, 12], [20, 21, 0]]),  # Fisher information
    ],
)
def test_whose_row_stands_in(tokens, policy, request_, expected, tmp_path):
    sources = [checkpoint(tmp_path / f"m{i}", list(t), offset=10 * i) for i, t in enumerate(tokens.split())]
    found, problems, notes = align(sources, policy, **request_)
    assert problems == [] and notes
    assert found == expected


def test_tokenizers_that_cannot_be_read(tmp_path):
    """The same number of rows is taken at its word, with a note; another number needs a policy."""
    first = checkpoint(tmp_path / "a", list("abc"))
    same = checkpoint(tmp_path / "b", None, rows=3)
    more = checkpoint(tmp_path / "c", None, rows=4)
    rows, problems, notes = align([first, same])
    assert problems == [] and "assumed to be the same tokens" in notes[0] and rows == [[0, 1, 2], [-1, -1, -1]]
    _, problems, _ = align([more, first])
    assert "no tokenizer" in problems[0] and str(tmp_path / "c") in problems[0]
    rows, _, notes = align([more, first], "keep")
    assert "matched by row number" in notes[0] and rows == [[-1] * 4, [0, 1, 2, -1]]


def test_an_adapters_tokenizer_counts(tmp_path):
    """Tokens added while training an adapter: the folder that was saved last knows them."""
    base = checkpoint(tmp_path / "base", list("ab"))
    tuned = checkpoint(tmp_path / "tuned", None, rows=3, offset=10)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "vocab.json").write_text(json.dumps({"b": 0, "a": 1, "x": 2}))
    view = SimpleNamespace(
        label="view", folder=tmp_path / "adapter", entries=tuned.entries, read=tuned.read, base=tuned
    )
    (tmp_path / "tuned" / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    _, problems, _ = align([base, view])
    assert "'x'" in problems[0]
