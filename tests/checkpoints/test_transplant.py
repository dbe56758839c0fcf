"""A model with another tokenizer: which rows are copied, averaged, or the mean of all; and what else follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.checkpoints.merge import Prepared
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.transplant import TokenTexts, assign, prepare_transplant
from holdfast.cli.main import main
from holdfast.errors import ConfigError, ModelError
from tiny import SENTENCES, build_model, build_tokenizer

TEXT = "the quick fox\nnames an object"


def sentencepiece(folder: Path, *, size: int = 300, template: str | None = None) -> Any:
    """A BPE with the letters and byte tokens of SentencePiece."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokens = ["<unk>", "<s>", "</s>", "<|pad|>", *(f"<0x{b:02X}>" for b in range(256))]
    bpe.train_from_iterator(
        [s.replace("\n", "") for s in SENTENCES] * 4,
        trainers.BpeTrainer(vocab_size=260 + size, special_tokens=tokens, show_progress=False),
    )
    # bytes are tokens of the vocabulary, not added ones
    stated = json.loads(bpe.to_str())
    stated["added_tokens"] = stated["added_tokens"][:4]
    found = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(stated)),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<|pad|>",
        chat_template=template,
    )
    found.save_pretrained(folder)
    return found


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A model with a byte-level BPE, its head apart, and a donor's tokenizer."""
    model = build_model(320, tie=False, width=16)
    tokenizer = build_tokenizer(320, chat_template="{{ messages }}")
    model.generation_config.eos_token_id = [0, tokenizer.get_vocab()["e"], tokenizer.get_vocab()["$"]]
    model.generation_config.temperature, model.generation_config.do_sample = 0.3, True
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path / "model")
    sentencepiece(tmp_path / "donor", template="{{ bos_token }}")
    (tmp_path / "donor/generation_config.json").write_text('{"temperature": 1.7}')
    (tmp_path / "donor/LICENSE").write_text("the donor's")
    return tmp_path / "model", tmp_path / "donor"


def values(folder: Path) -> dict[str, np.ndarray]:
    with CheckpointReader(folder) as reader:
        return {n: np.array(reader.mapped(n), np.float64).reshape(reader.shape(n)) for n in reader.entries}


def written(prepared: Prepared, folder: Path, **more: Any) -> Path:
    return prepared.write(folder, sync=False, **more).folder


def test_every_row_is_what_it_is_said_to_be(pair: tuple[Path, Path], tmp_path: Path, small_units: int) -> None:
    from transformers import AutoTokenizer

    model, donor = pair
    out = written(prepare_transplant(model, donor, multiple=16), tmp_path / "out", workers=3)
    again = written(prepare_transplant(model, donor, multiple=16), tmp_path / "again", workers=1)
    mine, theirs = AutoTokenizer.from_pretrained(model), AutoTokenizer.from_pretrained(donor)
    before, after = values(model), values(out)
    assert all(np.array_equal(v, values(again)[n]) for n, v in after.items())
    counts = {"copied": 0, "averaged": 0, "mean": 0}
    size = max(theirs.get_vocab().values()) + 1
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows, old = after[name], before[name]
        assert rows.shape == (-(-size // 16) * 16, 16) and len(rows) > size
        everything = old.mean(0)
        np.testing.assert_allclose(rows[size:], np.tile(everything, (len(rows) - size, 1)), atol=1e-8)
        for token, row in theirs.get_vocab().items():
            text = token.replace("▁", " ")
            if token.startswith("<0x"):
                raw = bytes([int(token[3:5], 16)])
                letter = mine.backend_tokenizer.pre_tokenizer.pre_tokenize_str(raw.decode("latin-1"))[0][0]
                text = raw.decode() if raw < b"\x80" else None
                if text is None:  # a byte that is no letter by itself: the row of the byte's own letter
                    assert letter and any(np.array_equal(rows[row], r) for r in old), token
                    continue
            ids = mine(text).input_ids
            if token in ("<s>", "</s>", "<unk>", "<|pad|>"):
                continue
            wanted = old[ids].mean(0) if ids else everything
            np.testing.assert_allclose(rows[row], wanted, atol=1e-7, err_msg=repr(token))
            counts["copied" if len(ids) == 1 else "averaged"] += name.startswith("lm_head")
        # special tokens: of the same text, of the same role, else by their text
        vocabulary = theirs.get_vocab()
        np.testing.assert_array_equal(rows[vocabulary["<|pad|>"]], old[mine.pad_token_id])
        np.testing.assert_array_equal(rows[vocabulary["</s>"]], old[mine.eos_token_id])
        np.testing.assert_allclose(rows[vocabulary["<s>"]], old[mine("<s>").input_ids].mean(0), atol=1e-7)
    assert counts["copied"] > 100 and counts["averaged"] > 10
    others = [n for n in before if n not in ("model.embed_tokens.weight", "lm_head.weight")]
    assert others and all(np.array_equal(before[n], after[n]) for n in others)


def test_the_result_loads_with_the_donors_tokenizer(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, donor = pair
    prepared = prepare_transplant(model, donor)
    out = written(prepared, tmp_path / "out")
    theirs, ours = AutoTokenizer.from_pretrained(donor), AutoTokenizer.from_pretrained(out)
    assert ours(TEXT).input_ids == theirs(TEXT).input_ids and ours.chat_template == "{{ bos_token }}"
    loaded, told = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.vocab_size == len(theirs)
    assert loaded.config.eos_token_id == theirs.eos_token_id and loaded.config.pad_token_id == theirs.pad_token_id
    with torch.no_grad():
        assert loaded(**ours(TEXT, return_tensors="pt")).logits.isfinite().all()
    generation = json.loads((out / "generation_config.json").read_text())
    # the donor's end, and of the model's others those that the donor has
    assert generation["eos_token_id"] == [theirs.eos_token_id, theirs.get_vocab()["e"]]
    assert generation["temperature"] == 0.3, "all else of it is the model's"
    assert not (out / "LICENSE").exists()
    record = json.loads((out / "provenance.json").read_text())
    counts = record["request"]["rows"]
    assert sum(counts[k] for k in ("copied", "averaged", "mean")) == len(theirs)
    assert any(f"{counts['copied']:,} tokens that both have are copied" in note for note in record["plan"]["notes"])
    assert counts["by_role"] == 1 and counts["averaged"] > 10, "the end has another text in the donor"


def test_the_same_tokenizer_is_the_same_model(pair: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = pair
    prepared = prepare_transplant(model, model)
    assert prepared.request["rows"] == {"copied": 320, "by_role": 0, "averaged": 0, "mean": 0, "padding": 0}
    out = written(prepared, tmp_path / "out")
    for name, rows in values(model).items():
        np.testing.assert_array_equal(values(out)[name], rows)
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == 0


def test_bytes_and_pieces_of_one_text_keep_their_rows(tmp_path: Path) -> None:
    """SentencePiece has "A" and "<0x41>"; a byte-level donor's "A" is the piece."""
    sentencepiece(tmp_path / "one")
    build_tokenizer(320).save_pretrained(tmp_path / "other")
    one, other = TokenTexts(tmp_path / "one"), TokenTexts(tmp_path / "other")
    count = len(one.tokens)
    assert assign(one, one, count).rows.tolist() == list(range(count))
    rows = assign(one, other, count).rows
    assert one.tokens["A"] != one.tokens["<0x41>"]
    assert rows[other.tokens["A"]] == one.tokens["A"] and rows[other.tokens["Ġ"]] == one.tokens["▁"]


def test_there_and_back_again_keeps_what_both_have(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """And a tied head stays tied; 16 bits are rounded once."""
    _, donor = pair
    model = build_model(320, tie=True, width=16).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "tied")
    tokenizer = build_tokenizer(320)
    tokenizer.save_pretrained(tmp_path / "tied")
    there = written(prepare_transplant(tmp_path / "tied", donor), tmp_path / "there")
    back = written(prepare_transplant(there, tmp_path / "tied"), tmp_path / "back")
    with CheckpointReader(back) as reader, CheckpointReader(tmp_path / "tied") as first:
        assert "lm_head.weight" not in reader.entries
        name = "model.embed_tokens.weight"
        rows, old = (np.array(r.mapped(name)).reshape(320, 16) for r in (reader, first))
    common = (rows == old).all(1)
    assert common.sum() > 250 and not common.all()


def test_tokens_of_other_kinds_are_the_same_by_their_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "##re": 2, "fox": 3, "##x": 4}, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    words.decoder = decoders.WordPiece()
    (tmp_path / "words").mkdir()
    words.save(str(tmp_path / "words/tokenizer.json"))
    unigram = Tokenizer(
        models.Unigram(
            [("<unk>", 0.0), ("▁the", -1.0), ("re", -2.0), ("▁fo", -2.0), ("x", -3.0), ("zz", -3.0)], 0, False
        )
    )
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    (tmp_path / "unigram").mkdir()
    unigram.save(str(tmp_path / "unigram/tokenizer.json"))
    one, other = TokenTexts(tmp_path / "words"), TokenTexts(tmp_path / "unigram")
    assert [one.text(t) for t in ("the", "##re")] == [b" the", b"re"]
    assert (one.alphabet, other.alphabet) == ("words", "metaspace")
    found = assign(other, one, 6)
    assert found.rows.tolist() == [-1, 1, 2, -1, 4]
    assert found.pieces == {3: [3, 4]} and found.unlike == ["[UNK]"]
    found = assign(one, other, 5, multiple=4)
    assert found.rows.tolist() == [-1, 1, 2, -1, 4, -1, -1, -1]
    assert found.counts["padding"] == 2
    # a model whose embeddings end before its vocabulary has no rows for the last tokens
    assert assign(one, other, 2).rows.tolist() == [-1, 1, -1, -1, -1, -1]


def test_what_is_said_before_anything_is_written(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, donor = pair
    sentencepiece(tmp_path / "plain")
    words = ["transplant", str(model), "--output_dir", str(tmp_path / "out"), "--no_sync"]
    assert main([*words, "--tokenizer", str(tmp_path / "plain"), "--dry_run"]) == 0
    printed = capsys.readouterr().out
    for part in ("are copied", "are means of", "not a model that is ready", "The donor has no chat template"):
        assert part in printed, part
    assert not (tmp_path / "out").exists()
    assert (
        main([*words, "--tokenizer", str(tmp_path / "plain"), "--chat_template", "chatml", "--dtype", "bfloat16"]) == 0
    )
    assert "im_start" in (tmp_path / "out/chat_template.jinja").read_text()
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    capsys.readouterr()
    assert main([*words, "--tokenizer", str(donor), "--pad_to_multiple_of", "0"]) == 2
    assert "--pad_to_multiple_of" in capsys.readouterr().err


def test_tokenizers_that_cannot_be_read(pair: tuple[Path, Path], tmp_path: Path) -> None:
    model, donor = pair
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"both tokenizers as tokenizer.json.*has no tokenizer"):
        prepare_transplant(model, tmp_path / "empty")
    (tmp_path / "empty/tokenizer.model").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"save it as tokenizer\.json once with transformers"):
        prepare_transplant(model, tmp_path / "empty")
    with pytest.raises(ConfigError, match="pad_to_multiple_of"):
        prepare_transplant(model, donor, multiple=0)
    (donor / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer's file"):
        prepare_transplant(model, donor)
