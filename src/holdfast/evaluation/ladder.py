"""A ladder: checkpoints of one model at rising pre-training budgets (Overtrained Language Models).

```yaml
ladder:
  - allenai/OLMo-1B-hf@step117850-tokens494B      # the name says the budget
  - {model: runs/ladder/8x, tokens: 8.2e6, label: 8x}
```

Checkpoints of a ladder have one architecture and one tokenizer, and budgets that rise from rung to
rung: otherwise what a change costs them would not be comparable.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.declare import Meta
from holdfast.config.decode import decode
from holdfast.config.values import Refused
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, Problem, UserError
from holdfast.support.token_counts import read_tokens

_TOKENS = re.compile(
    r"(?:^|[-_.@])(?:tokens[-_]?)?(\d+(?:\.\d+)?)([KMBT])(?:[-_]?tokens)?(?=$|[-_.])", re.IGNORECASE
)
_POWERS = {"K": 3, "M": 6, "B": 9, "T": 12}


def _tokens(value: Any) -> float:
    """A budget as people write it.

    Raises:
        ValueError: none.
    """
    return float(read_tokens(value))


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One checkpoint."""

    model: Annotated[str, Meta(metavar="MODEL")]
    """Folder, or hub id with `@revision`."""
    tokens: Annotated[
        float | None,
        Meta(
            parse=_tokens,
            expected="a number of tokens above 0, such as 4.0e9 or 4B",
            json_schema=lambda: {"type": ["number", "string", "null"]},
        ),
    ] = None
    """Number of pre-training tokens; default: the number in the model's name, as in
    `step117850-tokens494B`."""
    label: str | None = None
    """Label; default: the last part of the model's name."""

    @property
    def budget(self) -> float | None:
        """Tokens, as given or as the name says; None where neither does."""
        return self.tokens if self.tokens is not None else tokens_in(self.model)


def tokens_in(name: str) -> float | None:
    """The pre-training budget that a model's revision, or the last part of its name, states: 494e9
    for `step117850-tokens494B`. None where it states none.

    A number without the word counts in a revision only: the `1B` of `OLMo-1B` is its size.
    """
    base, at, revision = name.rstrip("/").rpartition("@")
    last = revision if at else base.rpartition("/")[2] or name.rstrip("/").rpartition("/")[2]
    matches = [match for match in _TOKENS.finditer(last) if at or "tokens" in match[0].lower()]
    worded = [match for match in matches if "tokens" in match[0].lower()] or matches
    if len(worded) != 1:
        return None
    number, letter = worded[0][1], worded[0][2]
    return float(f"{number}e{_POWERS[letter.upper()]}")


def parse_ladder(value: Any) -> tuple[Rung, ...]:
    """The setting `ladder`: a list of models or rungs, or the name of a YAML file that has one as
    `ladder:`.

    Raises:
        ValueError: no list.
        Refused: something is wrong with it, all of it; or no such file.
    """
    if isinstance(value, (str, Path)):
        try:
            value = read_yaml(
                value, option="ladder", needs="'ladder:' with a list of models"
            ).values.get("ladder")
        except ConfigError as error:
            advice = (
                "" if Path(value).is_file() else " 'holdfast study run' writes one for a ladder."
            )
            raise Refused(*(Problem((), f"{text}{advice}") for text in error.problems)) from None
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError("a list of models, or a YAML file that has one as 'ladder:'")
    rungs: list[Rung] = []
    problems: list[Problem] = []
    for number, item in enumerate(value):
        if isinstance(item, Rung):
            rungs.append(item)
            continue
        rung, wrong = decode(Rung, item if isinstance(item, Mapping) else {"model": item})
        for problem in wrong:
            problems.append(problem.below(number))
        if rung is not None:
            rungs.append(rung)
    if not problems:
        problems += [Problem((), text) for text in order_problems(rungs)]
    if problems:
        raise Refused(*problems)
    return tuple(rungs)


def order_problems(rungs: Sequence[Rung]) -> list[str]:
    """What is wrong with the budgets of a ladder: unknown, or not rising."""
    unknown = [rung.model for rung in rungs if rung.budget is None]
    if unknown:
        return [
            "expected the number of pre-training tokens of each checkpoint, found none for "
            f"{', '.join(unknown)}. Add 'tokens:' to a ladder file, as in {{model: {unknown[0]}, "
            "tokens: 4.0e9}."
        ]
    problems = []
    for rung, following in itertools.pairwise(rungs):
        if (rung.budget or 0) >= (following.budget or 0):
            problems.append(
                f"expected budgets in rising order, got {rung.model} ({rung.budget:.4g} tokens) "
                f"before {following.model} ({following.budget:.4g}). Order the models by budget, "
                "and list each budget once."
            )
    return problems


def unlike(names: Sequence[str], *, trust_remote_code: bool = False) -> list[str]:
    """Checkpoints of a ladder whose architecture or tokenizer is not that of the first, a sentence
    each."""
    from holdfast.evaluation.runner import tokenizer_fingerprint
    from holdfast.models import check_causal_lm, load_tokenizer

    problems: list[str] = []
    first: tuple[str, Mapping[str, Any], str] | None = None
    for name in names:
        try:
            config = check_causal_lm(name, trust_remote_code=trust_remote_code).to_dict()
            tokenizer = tokenizer_fingerprint(
                load_tokenizer(name, trust_remote_code=trust_remote_code)
            )
        except UserError as error:
            problems.append(str(error))
            continue
        for key in _PASSING:
            config.pop(key, None)
        if first is None:
            first = name, config, tokenizer
            continue
        first_name, first_config, first_tokenizer = first
        differ = sorted(
            key for key in {**first_config, **config} if first_config.get(key) != config.get(key)
        )
        if differ:
            pairs = []
            for key in differ[:4]:
                pairs.append(f"{key} {first_config.get(key)} and {config.get(key)}")
            problems.append(
                f"expected checkpoints of one architecture, but {first_name} and {name} differ: "
                f"{', '.join(pairs)}. A ladder is one model at several budgets. Probe other models "
                "without --ladder."
            )
        if tokenizer != first_tokenizer:
            problems.append(
                f"expected one tokenizer, but {first_name} and {name} have different ones, so "
                "their tokens cannot be compared. Copy the right tokenizer into both folders."
            )
    return problems


_PASSING = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "name_or_path",
)
"""Of a configuration, what says how it was saved."""
