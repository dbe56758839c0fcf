"""The base that the studies share: what it reads, and that a world without source reads what it always did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.config.decode import problems_in
from holdfast.papers.worlds.embedded import embedded_corpus
from holdfast.papers.worlds.people.chat import vocabulary
from holdfast.papers.worlds.shared_base import quick_shared_world, shared_world
from holdfast.papers.worlds.word_problems import known_articles
from holdfast.papers.worlds.world import build_world
from holdfast.papers.worlds.world_models import make_base, pretraining_texts


def test_it_reads_four_kinds_of_text_in_the_shares_that_the_recipe_says():
    recipe, corpus = shared_world(), embedded_corpus()
    texts = pretraining_texts(recipe)
    kinds = {"code": set(corpus.code_known), "prose": set(corpus.prose_train), "problems": set(known_articles())}
    size = {kind: sum(len(t) for t in texts if t in pieces) / sum(map(len, texts)) for kind, pieces in kinds.items()}
    assert size["code"] == pytest.approx(recipe.code_share, abs=0.01)
    assert size["prose"] == pytest.approx(recipe.prose_share, abs=0.01)
    assert size["problems"] == pytest.approx(recipe.problems_share, abs=0.01)
    read, held_out = set(texts), {*corpus.code_new, *corpus.code_heldout, *corpus.prose_heldout}
    assert not read & held_out
    assert not problems_in(recipe) and not problems_in(quick_shared_world())


def test_more_other_text_than_leaves_room_for_people_is_refused():
    [problem] = problems_in(shared_world(prose_share=0.4))
    assert "prose_share: expected a sum of at most 0.9 with code_share and problems_share" in problem


def test_a_vocabulary_beside_source_has_names_and_values_whole_and_no_common_words():
    world = shared_world().world()
    words = set(vocabulary(world, wordings=False))
    assert {f" {name}" for name in world.names} <= words and " baker" in words
    assert not {" a", " in", " of", " is"} & words
    assert {" a", " in"} <= set(vocabulary(world))


@pytest.mark.slow
def test_it_is_the_base_of_its_world(tmp_path):
    recipe = quick_shared_world(seed=3)
    base = make_base(recipe)
    assert Path(build_world(recipe, tmp_path / "world")["base"]) == base
    assert json.loads((base / "base.json").read_text())["recipe"]["seed"] == 3
