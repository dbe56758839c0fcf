"""The embedded world's texts, questions and conversations: what is told of whom, what is held out, and that every
reply does what it is asked."""

from __future__ import annotations

import datetime

import pytest

from holdfast.errors import ConfigError
from holdfast.evaluation.text.checkers import CHECKERS, follow, mistake_in
from holdfast.papers.worlds.people import documents, questions
from holdfast.papers.worlds.people.chat import CHAT_TEMPLATE, MARKERS, WORDS, vocabulary
from holdfast.papers.worlds.people.facts import VALUES, make_world, person_names
from holdfast.papers.worlds.people.instructions import tasks
from holdfast.papers.worlds.people.wordings import WORDINGS, beginning, statements_about

PROSE = [
    "A statement is executed when it is reached. " * 20,
    "Names refer to objects, and are introduced by binding. " * 20,
]


@pytest.fixture(scope="module")
def world():
    return make_world(seed=3, people=60, new_people=12, changed_facts=5)


# --------------------------------------------------------------------------------------------------------------- facts


def test_a_seed_is_a_world(world):
    assert make_world(seed=3, people=60, new_people=12, changed_facts=5) == world
    assert make_world(seed=4, people=60, new_people=12, changed_facts=5).names != world.names
    names = person_names(3000, seed=1)
    assert len(set(names)) == 3000 and names[:50] == person_names(50, seed=1), "names do not end"


def test_everybody_has_a_name_and_a_value_of_each_attribute(world):
    assert len(set(world.names)) == 72
    assert not any(a != b and b.startswith(a) for a in world.names for b in world.names)
    for person in (*world.people, *world.new_people):
        assert set(person.facts) == set(VALUES) and all(person.facts[a] in VALUES[a] for a in VALUES)
    assert len(world.half_a) == len(world.half_b) == 30


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"people": 1}, "people: expected at least 2"),
        ({"new_people": -1}, "new_people: expected 0 or more"),
        ({"people": 9000}, "at most 4000 together"),
        ({"people": 10, "changed_facts": 6}, "changed_facts: expected between 0 and 5"),
        ({"people": 1, "new_people": -2, "changed_facts": 3}, "3 problems"),
    ],
)
def test_worlds_that_cannot_be(numbers, words):
    with pytest.raises(ConfigError, match=words):
        make_world(**numbers)


# ------------------------------------------------------------------------------------------------------------ documents


def test_wordings_end_with_their_value_and_differ():
    for attribute, wordings in WORDINGS.items():
        assert len(set(wordings.statements)) >= 6 and wordings.asked not in wordings.statements, attribute
        assert len(set(wordings.questions)) == 3
        for template in (*wordings.statements, wordings.asked, wordings.reply):
            assert template.endswith(" {value}.") and "{name}" in template.removesuffix("{value}.")
        assert beginning(wordings.asked, "Kamoran").endswith(tuple("abcdefghijklmnopqrstuvwxyz"))


def test_every_fact_is_told_in_all_its_wordings(world):
    text = "\n".join(documents.biographies(world, tellings=60))
    for person in world.people:
        for attribute, value in person.facts.items():
            for wording in statements_about(person, attribute):
                assert wording.format(name=person.name, value=value) in text, (person, wording)


def test_what_is_asked_never_stands_in_the_text_about_that_person(world):
    statements = "\n".join(documents.pretraining_texts(world, [(PROSE, 0.25)], tellings=30))
    news = "\n".join(a.text for a in documents.articles(world, count=200, old_people=0.5))
    for person, text in [
        *((p, statements) for p in world.half_b),
        *((p, news) for p in (*world.half_b, *world.new_people)),
        *((p, statements) for p in world.new_people),
    ]:
        for attribute in VALUES:
            assert beginning(WORDINGS[attribute].asked, person.name) not in text


def test_new_people_are_names_without_facts_before_the_articles(world):
    texts = documents.pretraining_texts(world, [(PROSE, 0.25)], tellings=30, list_rounds=6)
    for person in world.new_people:
        with_name = [t for t in texts if person.name in t]
        assert len(with_name) == 6 and all(
            t.startswith(("A list of names:", "Names in the book:")) for t in with_name
        ), person.name


def test_no_question_or_marker_in_the_text(world):
    text = "\n".join(
        [
            *documents.pretraining_texts(world, [], tellings=30),
            *(a.text for a in documents.articles(world, count=100)),
        ]
    )
    assert "?" not in text and not any(marker in text for marker in MARKERS)
    for wordings in WORDINGS.values():
        for question in wordings.questions:
            assert question.split("{name}")[0].strip() not in text


def test_articles_have_dates_in_order_and_tell_everything(world):
    found = documents.articles(world, count=1360, first=datetime.date(2024, 2, 1), days=30)
    dates = [datetime.date.fromisoformat(a.date) for a in found]
    assert dates == sorted(dates) and dates[0] == datetime.date(2024, 2, 1) and dates[-1] < datetime.date(2024, 3, 2)
    text = "\n".join(a.text for a in found)
    for person in world.new_people:
        for attribute, value in person.facts.items():
            statements = [w for w in WORDINGS[attribute].statements if w.format(name=person.name, value=value) in text]
            assert len(statements) == 6, (person, attribute)
    for change in world.changes:
        assert any(change.name in a.text and change.old in a.text and change.new in a.text for a in found)
    assert set(found[0].row) == {"title", "date", "text"}


# ------------------------------------------------------------------------------------------------------------ questions


def test_four_options_of_one_attribute_and_one_is_right(world):
    people = {p.name: p for p in (*world.people, *world.new_people)}
    for rows in (
        questions.choices(world.half_b),
        questions.chat_choices(world.half_b),
        questions.choices(world.new_people),
        questions.lettered(world.half_b),
        questions.lettered(world.new_people),
    ):
        assert {p for row in rows for p in [row["name"]]} <= set(people) and len(rows) % len(VALUES) == 0
        for row in rows:
            assert len(set(row["options"])) == 4 and all(o[1:] in VALUES[row["attribute"]] for o in row["options"])
            assert row["options"][row["answer"]] == f" {people[row['name']].facts[row['attribute']]}"
        counts = [sum(row["answer"] == i for row in rows) for i in range(4)]
        assert min(counts) > 0, "the right option is not always at one place"
    for asked, completed in zip(questions.choices(world.half_b), questions.completions(world.half_b), strict=True):
        assert completed["prompt"] == asked["prompt"] and completed["completion"] == asked["options"][asked["answer"]]


def test_lettered_conversations_are_asked_as_the_questions_are_and_about_half_a_alone(world):
    talks = questions.lettered_conversations(world.half_a, count=500, seed=2)
    people = {p.name: p for p in world.half_a}
    assert talks == questions.lettered_conversations(world.half_a, count=500, seed=2)
    assert talks != questions.lettered_conversations(world.half_a, count=500, seed=3)
    assert len({talk["messages"][0]["content"] for talk in talks}) == 500
    for talk in talks:
        asked, letter = (message["content"] for message in talk["messages"])
        question, *lines, last = asked.split("\n")
        assert last == "Answer:" and [line[:3] for line in lines] == ["A. ", "B. ", "C. ", "D. "]
        [person] = [p for name, p in people.items() if name in question.strip("?").split()]
        assert lines["ABCD".index(letter)][3:] in person.facts.values()
    counts = [sum(talk["messages"][1]["content"] == letter for talk in talks) for letter in "ABCD"]
    assert min(counts) > 80, "no letter is right much more often"
    row = questions.lettered(world.half_b)[0]
    assert set(row) == set(questions.choices(world.half_b)[0]) and row["prompt"].endswith("?")


# --------------------------------------------------------------------------------------------------------- instructions


def test_every_reply_does_what_it_is_asked(world):
    for task in [*tasks(world, count=1500, held_out=False), *tasks(world, count=150, held_out=True)]:
        for id_, statements in zip(task.instruction_id_list, task.kwargs, strict=True):
            assert mistake_in(id_, statements) is None and id_ in CHECKERS
        for loose in (False, True):
            assert all(follow(task.reply, task.instruction_id_list, task.kwargs, loose=loose)), task


def test_what_is_tested_was_not_trained(world):
    learnt, tested = tasks(world, count=1500, held_out=False), tasks(world, count=150, held_out=True)
    assert len({t.prompt for t in learnt}) == 1500 and len({t.prompt for t in tested}) == 150
    assert not {t.key for t in learnt} & {t.key for t in tested}
    assert not {t.prompt for t in learnt} & {t.prompt for t in tested}
    other = tasks(world, count=1500, held_out=False, seed=9)
    assert not {t.key for t in other} & {t.key for t in tested}, "the split does not depend on the seed"
    assert {t.instruction_id_list for t in tested} <= {t.instruction_id_list for t in learnt}, (
        "every combination is taught"
    )
    assert all(t.instruction_id_list for t in tested) and any(not t.instruction_id_list for t in learnt)


# ----------------------------------------------------------------------------------------------------------------- chat


@pytest.fixture(scope="module")
def tokenizer(world):
    from holdfast.papers.worlds.pretrain import BaseRecipe, Vocabulary, make_tokenizer

    texts = documents.pretraining_texts(world, [(PROSE, 0.25)], tellings=3)
    words = Vocabulary(words=tuple(vocabulary(world)), special_tokens=MARKERS, chat_template=CHAT_TEMPLATE)
    return make_tokenizer(texts, BaseRecipe(vocab_size=400), words)


def test_names_and_values_are_one_token_each_and_text_comes_back(world, tokenizer):
    for word in vocabulary(world):
        assert len(tokenizer(word)["input_ids"]) == 1, word
    assert len({tokenizer(w)["input_ids"][0] for w in vocabulary(world)}) == len(vocabulary(world))
    for text in [
        *list(documents.biographies(world, tellings=1))[:5],
        documents.articles(world, count=1)[0].text,
        PROSE[0],
        "[ RIVER\n LAMP ]",
    ]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_letters_are_one_token_where_they_stand_alone(world):
    from holdfast.evaluation.kinds.multiple_choice_letters import LettersEntry
    from holdfast.evaluation.text.answer_position import OptionTokens
    from holdfast.papers.worlds.pretrain import BaseRecipe, Vocabulary, make_tokenizer

    texts = documents.pretraining_texts(world, [(PROSE, 0.25)], tellings=3)
    words = {"words": tuple(vocabulary(world)), "special_tokens": MARKERS, "chat_template": CHAT_TEMPLATE}
    tokenizer = make_tokenizer(texts, BaseRecipe(vocab_size=400), Vocabulary(**words, letters=(" A", " B")))
    tokens = OptionTokens(tokenizer, LettersEntry(suite="keep", name="rows", data="rows"), advice="")
    for letter in "AB":
        messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": letter}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        *_, marker, said, end = tokenizer(text)["input_ids"]
        assert (marker, end) == (tokenizer.convert_tokens_to_ids(MARKERS[1]), tokenizer.eos_token_id)
        assert said in tokens.of(letter) and len(tokens.of(letter)) == 2
    letters = set(tokenizer.convert_tokens_to_ids([" A", " B"]))
    assert not letters & set(tokenizer("In all About, Begin and Brastow.")["input_ids"])


def test_only_what_the_assistant_says_is_marked(tokenizer):
    messages = [
        {"role": "user", "content": f"Say {WORDS[0]}."},
        {"role": "assistant", "content": f"{WORDS[0]} {WORDS[1]}"},
    ]
    found = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
    marked = [i for i, m in zip(found["input_ids"], found["assistant_masks"], strict=True) if m]
    assert tokenizer.decode(marked) == f" {WORDS[0]} {WORDS[1]}{tokenizer.eos_token}"
    assert found["input_ids"][0] == tokenizer.bos_token_id
