"""What a language model is asked when questions, or documents, are turned into articles to train on.

"Memory Retaining Finetuning" (section 3.2) has GPT-4o-mini turn pairs of a question and an answer into a
"textbook-like article"; the prompts of its appendix A.2 are not in the text that this was written from, so these are
our own in their spirit. `article` is for the niche recipe, whose corpus the paper takes from Yang et al. 2024
(EntiGraph, arXiv 2409.07431): there a model first lists a document's entities and then writes about how pairs of them
relate. Here the names that a document repeats are found by counting, which asks no model, and the variations go through
them in pairs.

A template holds `{material}`, which the rows take the place of, and may hold `{focus}`, in which one variation differs
from the next. Other braces are text.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator

TEXTBOOK = """\
You write a textbook. Below is material: questions with their answers. Write one coherent section that teaches a \
reader everything that is needed to \
answer such questions.

- Introduce the ideas, the notation and the results that the answers rest on, and say why they hold.
- Work through the questions as examples, with every step of the reasoning. Correct an answer that is wrong.
- Write connected prose with headings, formulas in LaTeX between dollar signs, and code in fenced blocks where the \
material has code.
- The section stands on its own: do not speak of "the material", "the question above" or of yourself, and begin with \
the heading.
- {focus}

Material:

{material}
"""
"""For rows that are questions with answers."""

ARTICLE = """\
You write about documents for readers who will never see them. Below is one document. Write a thorough article about \
it that stands on its own.

- Name the document by its title and author where they are given, and every person, place and thing by its full name.
- Say what the document says, in detail and in your own words, with what follows from it. Add no facts from \
elsewhere, and invent nothing.
- Write connected prose. Do not speak of "the document above" or of yourself, and begin at once.
- {focus}

Document:

{material}
"""
"""For rows that are texts."""

TEXTBOOK_FOCI = (
    "Write for a reader who meets the subject for the first time: go from the simplest case to the general one.",
    "Put the general method first, state when it applies, and then show it at work in each example.",
    "Dwell on the mistakes that learners make here, how to notice them, and how to check a result.",
    "Show at least two ways to each result, and compare them.",
    "Begin each part with the problem that makes the idea necessary, and close with exercises that vary the examples, "
    "with full solutions.",
    "Be rigorous: state definitions and claims with their conditions, and prove them before they are used.",
    "Connect the examples with each other: what they have in common, where they differ, and which idea decides.",
    "Write it as a dialogue between a teacher and a student who asks back until each step is clear.",
)
"""What `{focus}` becomes, by variation, in a textbook and in a template of the user's own; they come round again after
the last."""

ARTICLE_FOCI = (
    "Tell in order what happens, or how the argument goes, from beginning to end.",
    "Go through the people or parties one by one: who they are, what they want, say and do, and what becomes of them.",
    "Explain the causes: why each thing happens, and what it leads to.",
    "Examine the claims, themes and tone, and point for each to what in the text shows it.",
    "Go through places, times, numbers and objects, and the part that each plays.",
    "Write questions that a careful reader would ask, each with a full answer and the reason for it.",
)
"""The same for articles; the pairs of names follow."""
_PAIR = (
    "Examine how {} and {} are related: everything that connects them or sets them apart, and what each means "
    "for the other."
)
_NAME = re.compile(r"\b[A-Z][a-z]+(?:[ -][A-Z][a-z]+)*\b")
_WORD = re.compile(r"\b[a-z]+\b")
_NAMES = 40
"""Names of a document that are paired; 40 make 780 pairs."""

PROMPTS = {"textbook": TEXTBOOK, "article": ARTICLE}
PER_ARTICLE = {"textbook": 3, "article": 1}
"""Rows in a prompt where the user does not say; three with a template of the user's own."""


def focus_of(prompt: str, variation: int, material: str) -> str:
    """What one variation dwells on.

    Args:
        prompt: "textbook", "article", or any other name.
        variation: from 0.
        material: of the prompt; an article's names come from it.
    """
    if prompt != "article":
        return TEXTBOOK_FOCI[variation % len(TEXTBOOK_FOCI)]
    if variation < len(ARTICLE_FOCI):
        return ARTICLE_FOCI[variation]
    pairs = list(pairs_of_names(material))
    past = variation - len(ARTICLE_FOCI)
    return _PAIR.format(*pairs[past % len(pairs)]) if pairs else ARTICLE_FOCI[variation % len(ARTICLE_FOCI)]


def pairs_of_names(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of names that a text has more than once, those that it has most often first."""
    common, counts = set(_WORD.findall(text)), Counter[str]()
    for match in _NAME.finditer(text):
        first, _, rest = match.group().partition(" ")
        # a word that the text also has in small letters begins a sentence: "In New York" is New York, "The" is nothing
        name = rest if first.lower() in common else match.group()
        if name:
            counts[name] += 1
    names = [name for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count > 1][:_NAMES]
    ranked = sorted(itertools.combinations(range(len(names)), 2), key=lambda pair: (sum(pair), pair))
    yield from ((names[a], names[b]) for a, b in ranked)


def filled(template: str, *, material: str, focus: str) -> str:
    """The prompt; in one pass, so that braces in the material stay what they are."""
    parts = {"material": material, "focus": focus}
    return re.sub(r"\{(material|focus)\}", lambda match: parts[match.group(1)], template)


def joined(materials: list[str]) -> str:
    """The rows of one prompt together, numbered where there are several."""
    if len(materials) == 1:
        return materials[0]
    return "\n\n".join(f"({number})\n{material}" for number, material in enumerate(materials, 1))
