"""The policy of a gate: what may be lost on which entry, and what is done about it.

```yaml
# holdfast compare A B --policy gate.yaml
entries:
  keep/mmlu: {tier: critical, margin: 1pt}
  keep/prose: {tier: critical, margin: 0.02 nats/token}
  keep: {tier: supporting, margin: 2%}   # a suite: its other entries
  any: {tier: advisory}                  # all others
fail_if: ["learn gain < 2pt"]            # further rules, as of --fail_if
supporting_losses: 2                     # HOLD where so many supporting entries lost too much
```

A loss is too much where it is larger than the entry's margin. For each entry the whole interval of
the loss is within the margin (passed), beyond it (failed), or neither (undecided):

    critical      a failure holds; undecided cannot tell
    supporting    `supporting_losses` failures hold; undecided changes nothing
    advisory      is only shown
    required      (all but advisory ones, unless said otherwise) holds where one of the two models was
                  not measured, not alike, or what was measured is not finite

SHIP is what remains: every critical entry is shown to have lost no more than its margin
(non-inferiority; Piaggio et al. 2012, CONSORT extension). How tests are made and adjusted for their
number is said in `compare.gate`; advisory entries are not among them.

An accepted loss widens an entry's margin by the loss that was measured when it was accepted, for
comparisons with the same model before.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import decode, decode_named
from holdfast.config.schema import json_schema, object_schema
from holdfast.config.values import Refused
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.evaluation.compare.folders import EntryPair, Key, Matching, weights_of
from holdfast.evaluation.compare.gate import Aim, Rule, meant_metrics, parse_rules, shared_metrics
from holdfast.records.comparison import (
    ADVISORY,
    CRITICAL,
    AcceptedLoss,
    AcceptedLosses,
    Comparison,
    Tier,
)
from holdfast.records.evaluation import Evaluation
from holdfast.records.margins import Margins, StatedMargins, margin_words
from holdfast.support.files import read_as, write_json

_SUBJECT = re.compile(r"\S(?:.*\S)?")
EVERY = "any"
"""The subject that all entries are left to which no other names."""


@dataclass(frozen=True, kw_only=True)
class EntryPolicy:
    """What is asked of an entry."""

    tier: Tier = CRITICAL
    """What happens if the loss is larger than the margin. critical: HOLD; supporting: the loss is
    counted; advisory: the loss is only shown."""
    margin: Annotated[tuple[str, ...], Meta(parse=margin_words, metavar="1pt")] = ()
    """Margin, the largest loss that does not matter, such as 1pt (for shares), 2% (of the value
    before), '0.02 nats/token' or 0. Suites with several units need several. Default: --margin."""
    alpha: Annotated[float | None, Meta(gt=0, lt=0.5)] = None
    """One-sided error rate of the test; null: (1 - confidence) / 2."""
    required: bool | None = None
    """Whether both models must have a finite value; null: yes, unless the tier is advisory."""
    metric: str | None = None
    """Metric to judge; null: the first one."""

    @property
    def is_required(self) -> bool:
        """Whether it has to be there."""
        return self.tier != ADVISORY if self.required is None else self.required


def _entries(value: Any) -> dict[str, EntryPolicy]:
    entries, problems = decode_named(
        EntryPolicy,
        value,
        name=_SUBJECT,
        allowed="an entry, suite/entry, a suite or 'any'",
        shorthand="margin",
        like="{tier: critical, margin: 1pt}",
    )
    if problems:
        raise Refused(*problems)
    return entries


def _entries_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": object_schema(settings_of(EntryPolicy)),
        "minProperties": 1,
    }


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy file."""

    entries: Annotated[
        dict[str, Any],
        Meta(
            parse=_entries,
            expected="entries by name, as in {keep/mmlu: {tier: critical, margin: 1pt}}",
            json_schema=_entries_schema,
        ),
    ]
    """Policy of each entry. Keys: entry or suite/entry (one entry), suite (its entries without a
    key of their own), any (all entries that no other key covers)."""
    fail_if: tuple[str, ...] = ()
    """Further rules, as in --fail_if."""
    supporting_losses: Annotated[int, Meta(ge=1)] = 1
    """HOLD if at least this many supporting entries lose more than their margins."""
    accepted: Path = Path("accepted.json")
    """File in which --accept records accepted losses, relative to the policy file's folder."""

    @property
    def rules(self) -> list[Rule]:
        """Those of `fail_if`."""
        return parse_rules(self.fail_if)

    def problems(self) -> list[Problem]:
        """Rules that cannot be read."""
        try:
            parse_rules(self.fail_if)
        except ConfigError as error:
            return [Problem("fail_if", str(text)) for text in error.problems]
        return []


def policy_schema() -> dict[str, Any]:
    """JSON Schema of a policy file."""
    return json_schema(
        Policy, title="holdfast compare: a policy", description="The file of --policy."
    )


def read_policy(path: Path) -> Policy:
    """Reads a policy file; `accepted` is where it lies from here.

    Raises:
        ConfigError: no such file, or mistakes in it, all at once.
    """
    request = read_yaml(path, option="--policy", needs="entries")
    policy, problems = decode(Policy, request.values)
    request.check(problems)
    assert policy is not None, "if a policy cannot be decoded, its problems are listed"
    return replace(policy, accepted=path.parent / policy.accepted)


def bind_policy(
    policy: Policy, matching: Matching, margins: Margins, losses: Sequence[AcceptedLoss] = ()
) -> list[Aim]:
    """What the policy asks of each entry of two models. The subject that names an entry most
    closely decides: suite/name, name, suite, any.

    Args:
        policy: as it was read.
        matching: of the two models.
        margins: of entries whose margin it does not say.
        losses: that were accepted, of this model before.

    Raises:
        ConfigError: names that neither model has and that are not required, and metrics that were
            not measured; all at once.
    """
    pairs = {pair.key: pair for pair in matching.pairs}
    known = list(pairs)
    known += [(entry.suite, entry.name) for entry in matching.unmatched]
    by_subject: dict[str, list[Key]] = {subject: [] for subject in policy.entries}
    for key in dict.fromkeys(known):
        ranks = {subject: _rank(subject, key) for subject in policy.entries}
        subject = min(ranks, key=lambda subject: ranks[subject])
        if ranks[subject] < _NOT_MEANT:
            by_subject[subject].append(key)
    aims: list[Aim] = []
    problems = []
    for subject, keys in by_subject.items():
        entry_policy = policy.entries[subject]
        margin = " or ".join(entry_policy.margin) or "the margin"
        rule = Rule(
            text=f"{subject} loses at most {margin} ({entry_policy.tier})",
            what=subject,
            direction="drop",
            operator=">",
            threshold=0.0,
            unit="",
            tier=entry_policy.tier,
            alpha=entry_policy.alpha,
            required=entry_policy.is_required,
            margins=StatedMargins(entry_policy.margin) if entry_policy.margin else margins,
        )
        if not any(_rank(subject, key) < _NOT_MEANT for key in known) and subject != EVERY:
            if entry_policy.is_required:
                suite, _, name = subject.rpartition("/")
                aims.append(Aim(rule=rule, metrics={}, missing=[(suite, name)]))
            else:
                near = did_you_mean(subject, _names_of(known))
                problems.append(f"entries: no entry or suite '{subject}'.{near}")
        for key in keys:
            if key not in pairs:
                aims.append(Aim(rule=rule, metrics={}, missing=[key]))
                continue
            metric, problem = _metric(entry_policy.metric, pairs[key])
            if problem:
                problems.append(f"entries: {subject}: {problem}")
            problems += _misfits(subject, rule, pairs[key], metric)
            of_entry = tuple(loss for loss in losses if (loss.suite, loss.name) == key)
            aims.append(
                Aim(rule=replace(rule, accepted=of_entry), metrics={key: metric}, missing=[])
            )
    if problems:
        raise ConfigError(problems)
    return aims


_NOT_MEANT = 4


def _names_of(keys: Sequence[Key]) -> list[str]:
    """What entries may be called: by name, by suite, by both."""
    names: dict[str, None] = {}
    for suite, name in keys:
        names |= dict.fromkeys((name, f"{suite}/{name}", suite))
    return list(names)


def _rank(subject: str, key: Key) -> int:
    """How closely a subject names an entry, 0 most; `_NOT_MEANT` where it does not."""
    names = ["/".join(key), key[1], key[0], EVERY]
    return names.index(subject) if subject in names else _NOT_MEANT


def _misfits(subject: str, rule: Rule, pair: EntryPair, metric: str | None) -> list[str]:
    """What is wrong with the margin of an entry: none of its units fits the metric."""
    name = metric or pair.before.primary
    if rule.margins is None or name not in pair.before.metrics or name not in pair.after.metrics:
        return []
    before, after = pair.before.metrics[name], pair.after.metrics[name]
    if rule.margins.threshold(before.unit, name, before.value, after.value) is not None:
        return []
    return [
        f"entries: {subject}: no margin fits {'/'.join(pair.key)} {name}. Expected one in "
        f"{before.unit}, in %, or 0."
    ]


def _metric(word: str | None, pair: EntryPair) -> tuple[str | None, str]:
    """The metric that a word means on an entry, None for the one that leads; and what is wrong with
    the word."""
    if word is None:
        return None, ""
    candidates, chosen = meant_metrics(word, {pair.key: pair})
    if chosen:
        return chosen[pair.key], ""
    if candidates:
        return None, f"'{word}' may mean any of {', '.join(candidates)}: write one of them in full."
    shared = shared_metrics(pair)
    near = did_you_mean(word, shared)
    return None, f"{'/'.join(pair.key)} has no metric '{word}'.{near} It has: {', '.join(shared)}."


# ---------------------------------------------------------------------------------- accepted losses


def accepted_losses(policy: Policy, before: Matching) -> tuple[list[AcceptedLoss], list[str]]:
    """The accepted losses of this model before, and a sentence for those of others.

    Args:
        policy: says where they are recorded.
        before: of the two models that are compared.

    Raises:
        DataError: the file cannot be read.
    """
    if not policy.accepted.is_file():
        return [], []
    models = {model_of(pair.before) for pair in before.pairs}
    losses, notes = [], []
    for loss in read_as(policy.accepted, AcceptedLosses).losses:
        if loss.before in models:
            losses.append(loss)
        else:
            notes.append(
                f"The loss of {loss.suite}/{loss.name} that {loss.by} accepted on {loss.date} was "
                f"measured against another initial model ({loss.labels[0]}). This comparison does "
                "not use it."
            )
    return losses, notes


def model_of(evaluation: Evaluation) -> str:
    """What tells a model from others: its weights, or where nobody knows them its name.

    Raises:
        ConfigError: neither is known.
    """
    weights = weights_of(evaluation)
    if weights is not None:
        return weights
    name = evaluation.model.get("name")
    if not name:
        raise ConfigError(
            f"{evaluation.suite}/{evaluation.name}: the evaluation of the initial model records "
            "neither the model's weights nor its name. A loss relative to an unknown model cannot "
            "be accepted."
        )
    return f"named {name}"


def accept(
    policy: Policy,
    entries: Sequence[str],
    judged: Sequence[Comparison],
    *,
    before: str,
    labels: tuple[str, str],
    by: str,
    why: str,
) -> list[AcceptedLoss]:
    """Records losses as accepted, over earlier ones of the same entry and model.

    Args:
        policy: says where.
        entries: by name or suite/name.
        judged: the comparisons that the policy asks about.
        before: `model_of` the model before.
        labels: of the two models.
        by: who accepts them.
        why: in their words.

    Raises:
        ConfigError: no such entry, or nothing was lost there; all at once.
        DataError: the file that is there cannot be read.
    """
    names = _names_of([(c.suite, c.name) for c in judged])
    new: list[AcceptedLoss] = []
    problems = []
    for entry in entries:
        meant = [c for c in judged if entry in (c.name, f"{c.suite}/{c.name}")]
        if len(meant) != 1:
            problem = (
                f"matches {len(meant)} entries"
                if meant
                else "is not an entry that the policy judges"
            )
            problems.append(f"--accept: '{entry}' {problem}.{did_you_mean(entry, names)}")
        elif meant[0].gain >= 0.0:
            problems.append(f"--accept: {entry} has no loss.")
        else:
            new.append(
                AcceptedLoss(
                    suite=meant[0].suite,
                    name=meant[0].name,
                    metric=meant[0].metric,
                    unit=meant[0].unit,
                    loss=-meant[0].gain,
                    before=before,
                    labels=labels,
                    by=by,
                    why=why,
                    date=datetime.date.today().isoformat(),
                )
            )
    if problems:
        raise ConfigError(problems)
    losses = []
    if policy.accepted.is_file():
        replaced = {(loss.before, loss.suite, loss.name, loss.metric) for loss in new}
        for loss in read_as(policy.accepted, AcceptedLosses).losses:
            if (loss.before, loss.suite, loss.name, loss.metric) not in replaced:
                losses.append(loss)
    write_json(policy.accepted, AcceptedLosses(losses=[*losses, *new]))
    return new
