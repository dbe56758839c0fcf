"""What "Pattern Shifting or Knowledge Losing" claims, held against stages studies: holds, does not
hold, or cannot tell.

The rules stand here and were written before any outcome of the studies was looked at:

- A study is one *world*: people, texts and a base of its own. A figure is the mean over worlds, and
  its interval (95 %) covers them; the questions of a world are its own, so that their noise is in
  the spread between worlds. With one world it covers the questions alone.
- *First*, *middle*, *last*: the checkpoint after the first epoch, after half of them, and after
  all. *Plain text*: the probing passages, nats a token. *Knowledge*: the first task of the study,
  in small worlds multiple choice about people whom the base knew; the *second benchmark* is the
  next task that has no letters, in small worlds word problems. *Letters*: lettered questions,
  which have the answer position. *Memorised*: what has exact memorisation of the fine-tuning's
  data. Entries are the record's own, whatever they are called.
- Restored means restored with the paper's dose, as many tokens as one epoch of the fine-tuning has
  (section 3.1); claim 2f, which is ours, speaks of larger doses. A restored model is held against
  the base, as in the paper, *and* against the control, the base after the same restoring, which is
  ours: restoring has a cost of its own. Near, or below, means both.
- A change counts from `LEAST` on: 2 points, or 0.05 nats a token, with the whole interval. Plain
  text is *at the base's level* where it costs less than `TOLERANCE` nats more.
- *Rises*: along all checkpoints, with no way back by what counts between any two of them.
- *Within a few steps*: within `FEW` of all steps. *Most of* what was memorised: more than half.
- Claim 5 holds the transition to actual forgetting of the models against that of smaller ones in
  the same worlds, 7a the stages of those, 7b those tuned on other conversations.

Worlds 0 to 5 were judged by earlier rules (the lower of base and control; ends alone for what
rises) in another regime: restoring read some 15 times the paper's dose. Those outcomes are
withdrawn. The regime of today is chosen on world 0 by the preconditions below, without a look at
what the rules say, and decides nothing there; worlds from 6 on were nobody's before.

What has to be so before a rule may speak: the base knows what is asked, fine-tuning costs it and
does not destroy it, restoring reads no more than an epoch of the fine-tuning and costs the base
itself less than what counts, the pattern is back where knowledge is judged, and there is room above
the base where a gain is claimed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast.papers.claims.claim import Claim, Evidence, Statement, failed_models, judge_claims
from holdfast.papers.claims.requirements import Requirement
from holdfast.papers.claims.rules import FAILS, HOLDS, Check, Part, Rule, rising, rule, widened
from holdfast.papers.stages.cases import (
    BASE_MODEL,
    FEW,
    GROUPS,
    NARROW,
    OTHER,
    WIDE,
    Cases,
    Checkpoint,
    Measure,
    Worlds,
    above_guessing,
    along_checkpoints,
    changing,
    coming_back,
    dose_of,
    entropy,
    every,
    first,
    first_narrow,
    greatest,
    knowledge,
    last,
    last_in_nats,
    last_narrow,
    last_other,
    least_mass,
    letters,
    memorised,
    plain,
    second,
    several_doses,
    three,
)
from holdfast.records.figure import Figure
from holdfast.records.stages import StagesRecord

RECIPES = {WIDE: "stages", NARROW: "stages of two sizes", OTHER: "stages of other data"}
"""What claims are judged on, all worlds together, by the group whose worlds count."""
LEAST, LEAST_NATS = 0.02, 0.05
TOLERANCE = 0.05
MASS = 0.95
"""From which on the format counts as learnt (section 5)."""
KNOWN = 0.2
"""By so much the base is above guessing, else it has no knowledge to lose."""
COSTS = 0.05
"""By so much fine-tuning lowers the score."""
KEPT = 0.5
"""Of what the base knows above guessing, at least so much is left, else fine-tuning destroyed it:
the paper's models lose a few points of MMLU and ARC."""
DOSE = 1.25
"""Of the tokens of one epoch of the fine-tuning, restoring reads at most so many (section 3.1)."""
READING = (
    "Each study is a world: made-up people, texts about them and a base trained on these texts. "
    "Figures are means over worlds, and intervals cover the worlds. With one world, intervals "
    "cover only its questions.",
    "Restoring trains a checkpoint on as many tokens of plain text as one epoch of the fine-tuning "
    "has. Restored models are compared with the base, as in the paper. They are also compared with "
    "the control, which is the base after the same restoring. The control is ours.",
    "A change of less than 2 points or 0.05 nats a token counts as no change.",
    "The fine-tuning data has questions with lettered options. From them, the small model learns "
    "to answer with a letter. Llama 2 learnt this in pre-training.",
    "Learning rates and batch sizes were chosen on world 0 with the preconditions alone. Nobody "
    "looked at worlds 6 and later before the rules were written. Verdicts on earlier worlds used "
    "other rules and are withdrawn.",
)


def check_claims(records: Mapping[str, StagesRecord | None]) -> list[Claim]:
    """Every claim of the paper, held against its studies.

    Args:
        records: by study (`world-6`, `narrow-6`, ...), finished or not; None: not run.
    """
    groups: dict[str, dict[int, StagesRecord]] = {group: {} for group in GROUPS}
    models = []
    for name, record in records.items():
        group = next(group for group in GROUPS if name.startswith(group))
        if record is not None:
            groups[group][int(name.removeprefix(group))] = record
            models += record.models
    wide, missing = groups[WIDE], list(records.values()).count(None)
    worlds = Worlds(groups)
    without = {}
    for world in wide if len(wide) > 2 else ():
        without[f"world {world}"] = worlds.without(world)
    evidence = {}
    for group, recipe in RECIPES.items():
        study: Evidence[Worlds] = Evidence.of(
            worlds if wide else None,
            models,
            seeds=len(groups[group]),
            noun="model",
            without=without,
        )
        evidence[recipe] = dataclasses.replace(study, waiting=study.waiting + missing)
    return judge_claims(STATEMENTS, evidence)


# -------------------------------------------------------------------------------------------- rules

NATS = "nats/token"
TUNED_ABOVE = Check(
    what="knowledge score, checkpoint {case.place} - base",
    of=lambda at: at.change(at.tuned, BASE_MODEL, knowledge),
    above=LEAST,
    yes="checkpoint {case.place} scores above the base",
    no="checkpoint {case.place} does not score above the base",
)


def one_tuned_above(worlds: Worlds, level: float) -> list[Part]:
    """That which holds; else those that cannot be told."""
    cases = every(worlds)[:3]
    parts = [TUNED_ABOVE.part(at, widened(level, len(cases))) for at in cases]
    for condition in parts:
        if condition.verdict == HOLDS:
            return [condition]
    return [condition for condition in parts if condition.verdict != FAILS] or parts


def all_rules(says: str, *rules: Rule[Worlds]) -> Rule[Worlds]:
    """Every one of several rules."""

    def judge(worlds: Worlds, level: float) -> list[Part]:
        parts: list[Part] = []
        for member in rules:
            parts += member(worlds, level)
        return parts

    return Rule(says, judge)


def near(measure: Measure, what: str) -> tuple[Check, Check]:
    """Restored, the score is not below the base, nor below the control, by what counts."""
    yes, no = (
        "restoring brings back the score of the first checkpoint",
        "restoring does not bring back the score of the first checkpoint",
    )
    against_base = Check(
        what=f"{what}, restored first checkpoint - base",
        of=lambda at: at.change(at.restored, BASE_MODEL, measure),
        above=-LEAST,
        yes=yes,
        no=no,
    )
    against_control = Check(
        what=f"{what}, restored first checkpoint - control",
        of=lambda at: at.change(at.restored, at.control, measure),
        above=-LEAST,
        yes=f"{yes}, compared with the control",
        no=f"{no}, compared with the control",
    )
    return against_base, against_control


def left(measure: Measure, what: str) -> tuple[Check, Check]:
    """Restored, the score is below the base, and below the control, by what counts."""
    yes, no = (
        "restoring does not bring back the score of the last checkpoint",
        "restoring brings back the score of the last checkpoint",
    )
    against_base = Check(
        what=f"{what}, restored last checkpoint - base",
        of=lambda at: at.change(at.restored, BASE_MODEL, measure),
        below=-LEAST,
        yes=yes,
        no=no,
    )
    against_control = Check(
        what=f"{what}, restored last checkpoint - control",
        of=lambda at: at.change(at.restored, at.control, measure),
        below=-LEAST,
        yes=f"{yes}, compared with the control",
        no=f"{no}, compared with the control",
    )
    return against_base, against_control


def both_stages(says: str, cases: tuple[Cases, Cases], measure: Measure, what: str) -> Rule[Worlds]:
    """Pseudo forgetting after the first epoch, actual forgetting after the last."""
    early, late = cases
    return all_rules(
        says, rule(says, early, *near(measure, what)), rule(says, late, *left(measure, what))
    )


LEAST_MASS = Check(
    what=f"smallest probability of the answer letters after {FEW:.0%} of the steps",
    of=lambda at: at.over(least_mass),
    above=MASS,
    yes="the format is learnt within a few steps and stays",
    no="the format is not learnt within a few steps, or does not stay",
)
CHANGING = Check(
    what="share of answers to questions with lettered options that change between measured points, "
    "first half of the steps",
    of=lambda at: at.over(changing),
    above=LEAST,
    yes="the answers keep changing after the format is learnt",
    no="the answers do not keep changing after the format is learnt",
)


# ------------------------------------------------------------------------------------ preconditions


def lost(name: str, cases: Cases, measure: Measure = knowledge) -> Requirement:
    """Fine-tuning lowers the score of a checkpoint."""
    return Requirement(
        name=f"the {name} checkpoint lost knowledge",
        cases=cases,
        of=lambda at: at.change(BASE_MODEL, at.tuned, measure).value,
        at_least=COSTS,
        figure="base - checkpoint, share of right answers",
        advice="fine-tune longer or at a higher learning rate",
    )


def moderate(cases: Cases, measure: Measure = knowledge) -> Requirement:
    """Fine-tuning does not destroy the model."""
    return Requirement(
        name="fine-tuning does not destroy the model",
        cases=cases,
        of=lambda at: at.share_kept(measure),
        at_least=KEPT,
        figure="accuracy above guessing, last checkpoint / base",
        advice="fine-tune at a lower learning rate",
    )


def back(name: str, cases: Cases) -> Requirement:
    """The pattern of a checkpoint is back after restoring."""
    return Requirement(
        name=f"restoring brings back the text pattern of the {name} checkpoint",
        cases=cases,
        of=lambda at: at.pattern_left().value,
        at_most=TOLERANCE,
        figure="loss on plain text, restored checkpoint - the higher of base and control",
        advice="restore at a higher learning rate or in smaller batches, or fine-tune at a lower "
        "learning rate",
    )


def knows(cases: Cases, measure: Measure = knowledge) -> Requirement:
    """The base knows what is asked."""
    return Requirement(
        name="the base knows the answers",
        cases=cases,
        of=lambda at: at.over(lambda record: above_guessing(record, BASE_MODEL, measure)).value,
        at_least=KNOWN,
        figure="the base's accuracy above guessing",
        advice="train the base for longer",
    )


def cheap(cases: Cases, measure: Measure = knowledge) -> Requirement:
    """Restoring costs the base itself less than what counts."""
    return Requirement(
        name="restoring lowers the base's score only a little",
        cases=cases,
        of=lambda at: at.change(BASE_MODEL, at.control, measure).value,
        at_most=LEAST,
        figure="base - control, share of right answers",
        advice="restore at a lower learning rate, or on text that is closer to the base's own",
    )


def dose(cases: Cases) -> Requirement:
    """Restoring reads no more than an epoch of the fine-tuning."""
    return Requirement(
        name="restoring reads at most about as many tokens as one epoch of fine-tuning",
        cases=cases,
        of=lambda at: at.over(lambda record: Figure(value=dose_of(record))).value,
        at_most=DOSE,
        figure="tokens of restoring / tokens of an epoch",
        advice="leave `tokens` out: the default is one epoch of fine-tuning",
    )


def stages_of(early: Cases, late: Cases, measure: Measure = knowledge) -> tuple[Requirement, ...]:
    """What has to be so before both stages are judged."""
    return (
        knows(early, measure),
        dose(early),
        cheap(early, measure),
        lost("first", early, measure),
        lost("last", late, measure),
        moderate(late, measure),
        back("first", early),
        back("last", late),
    )


FIRST_LOST, LAST_LOST, MODERATE = lost("first", first), lost("last", last), moderate(last)
FIRST_BACK, LAST_BACK = back("first", first), back("last", last)
KNOWS, CHEAP, ONE_EPOCH = knows(first), cheap(first), dose(first)
ROOM = Requirement(
    name="the base leaves room for a gain",
    cases=first,
    of=lambda at: at.figure(BASE_MODEL, knowledge).value,
    at_most=0.95,
    figure="the base's accuracy",
    advice="ask harder questions",
)
LETTERS = Requirement(
    name="the middle checkpoint answers questions with lettered options",
    cases=last,
    of=lambda at: at.over(lambda record: above_guessing(record, at.middle, letters)).value,
    at_least=COSTS,
    figure="the middle checkpoint's accuracy above guessing",
    advice="add more questions with lettered options about known people to the fine-tuning data",
)
SHIFTED = Requirement(
    name="fine-tuning shifts the text pattern",
    cases=last,
    of=lambda at: at.change(at.tuned, BASE_MODEL, plain).value,
    at_least=LEAST_NATS,
    figure="loss on plain text, last checkpoint - base",
    advice="fine-tune longer or at a higher learning rate",
)


def _lacking(worlds: Worlds) -> str | None:
    records = [record for group in worlds.groups.values() for record in group.values()]
    failed = failed_models(model for record in records for model in record.models)
    measured = worlds.last() > 0 and all(record.tasks for record in worlds.of(WIDE).values())
    return failed or (None if measured else "nothing was measured")


def _claim(
    number: str,
    text: str,
    paper: str,
    rule: Rule[Worlds],
    *needs: Requirement,
    ours: bool = False,
    group: str = WIDE,
) -> Statement[Worlds]:
    return Statement(
        number=number,
        ours=ours,
        recipe=RECIPES[group],
        text=text,
        paper=paper,
        rule=rule,
        preconditions=needs,
        lacking=_lacking,
    )


STATEMENTS = (
    _claim(
        "1a",
        "The perplexity of plain text rises during fine-tuning.",
        "'a continuing upward trend along with the instruction tuning process' (section 4.1, "
        "figure 3b)",
        all_rules(
            "The last checkpoint's loss on plain text is at least 0.05 nats above the base's. "
            "The loss rises from the first checkpoint to the last. Between any two checkpoints, it "
            "falls by less than 0.05 nats.",
            rule(
                "",
                last,
                Check(
                    what="loss on plain text, last checkpoint - base",
                    of=lambda at: at.change(at.tuned, BASE_MODEL, plain),
                    above=LEAST_NATS,
                    yes="fine-tuning raises the loss on plain text",
                    no="fine-tuning does not raise the loss on plain text",
                    unit=NATS,
                ),
            ),
            rising(
                "",
                last_in_nats,
                along_checkpoints(plain),
                what="loss on plain text",
                least=0.0,
                back=LEAST_NATS,
                along="the epochs",
            ),
        ),
    ),
    _claim(
        "1b",
        "After every epoch, restoring brings the perplexity of plain text back to the base's "
        "level.",
        "restored models 'have all returned to convergence with the base LLM no matter how large "
        "the perplexity is' (section 4.1, figures 3a, 3b)",
        rule(
            f"After restoring, every checkpoint's loss on plain text is less than {TOLERANCE:g} "
            "nats above the base's.",
            every,
            Check(
                what="loss on plain text, restored checkpoint {case.place} - base",
                of=lambda at: at.change(at.restored, BASE_MODEL, plain),
                below=TOLERANCE,
                yes="restoring brings back the text pattern",
                no="restoring does not bring back the text pattern of checkpoint {case.place}",
                unit=NATS,
            ),
        ),
        SHIFTED,
        ONE_EPOCH,
    ),
    _claim(
        "2a",
        "Early forgetting is pseudo: after restoring, the model reaches the base's score again.",
        "'performance is restored near or above the baseline' (section 4.1; Llama 2 7B on Alpaca "
        "before epoch 4, figures 3c, 3d)",
        rule(
            "After restoring, the first checkpoint scores less than 2 points below the base and "
            "less than 2 points below the control.",
            first,
            *near(knowledge, "knowledge score"),
        ),
        KNOWS,
        ONE_EPOCH,
        CHEAP,
        FIRST_LOST,
        FIRST_BACK,
    ),
    _claim(
        "2b",
        "Late forgetting is actual: after restoring, the model scores below the base although its "
        "text pattern is back.",
        "'notably below the original LLMs even though text patterns are restored' (section 4.1; "
        "Llama 2 7B from epoch 4 on, 13B from epoch 2 on, figures 3c, 3d, 6c, 6d)",
        rule(
            "After restoring, the last checkpoint scores below both the base and the control, by 2 "
            "points or more.",
            last,
            *left(knowledge, "knowledge score"),
        ),
        KNOWS,
        ONE_EPOCH,
        CHEAP,
        LAST_LOST,
        MODERATE,
        LAST_BACK,
    ),
    _claim(
        "2c",
        "Restoring raises the score at every stage of fine-tuning.",
        "'a marked enhancement in performance after the restoring stage' (section 4.1)",
        rule(
            "Restoring raises the score of the first, the middle and the last checkpoint by 2 "
            "points or more.",
            three,
            Check(
                what="knowledge score, checkpoint {case.place}, restored - before",
                of=lambda at: at.change(at.restored, at.tuned, knowledge),
                above=LEAST,
                yes="restoring raises the score",
                no="restoring does not raise the score of checkpoint {case.place}",
            ),
        ),
        KNOWS,
        ONE_EPOCH,
        FIRST_LOST,
        LAST_LOST,
    ),
    _claim(
        "2d",
        "Early in fine-tuning, the restored model even scores above the base.",
        "'the performance of LLMs exceeds original base LLMs when their familiar text patterns "
        "have been restored' (section 4.1, figures 3c, 3d)",
        rule(
            "After restoring, the first checkpoint scores above the base by 2 points or more.",
            first,
            Check(
                what="knowledge score, restored first checkpoint - base",
                of=lambda at: at.change(at.restored, BASE_MODEL, knowledge),
                above=LEAST,
                yes="the restored model scores above the base",
                no="the restored model does not score above the base",
            ),
        ),
        KNOWS,
        ONE_EPOCH,
        CHEAP,
        FIRST_BACK,
        ROOM,
    ),
    _claim(
        "2e",
        "A second benchmark also shows pseudo and actual forgetting.",
        "'performances of LLMs on both benchmarks', MMLU and ARC (section 4.1, figures 3c, 3d)",
        both_stages(
            "Claims 2a and 2b also hold on the second benchmark. The second benchmark is the first "
            "task after the main one whose questions have no lettered options.",
            (first, last),
            second,
            "second benchmark",
        ),
        *stages_of(first, last, second),
    ),
    _claim(
        "2f",
        "Knowledge that restoring does not bring back after the last epoch is lost: more restoring "
        "does not bring it back either.",
        "none: the paper restores with one dose only, which leaves this open",
        rule(
            "After the largest of several doses of restoring, the last checkpoint scores below "
            "both the base and the control with that dose, by 2 points or more. The step from "
            "the second-largest dose to the largest brings back less than 2 points, compared with "
            "the control.",
            several_doses,
            *left(knowledge, "knowledge score, largest dose"),
            Check(
                what="gain from the second-largest dose to the largest, compared with the control",
                of=coming_back,
                below=LEAST,
                yes="more restoring brings back no more knowledge",
                no="more restoring brings back more knowledge",
            ),
        ),
        KNOWS,
        cheap(greatest),
        LAST_LOST,
        MODERATE,
        back("last", greatest),
        ours=True,
    ),
    _claim(
        "3a",
        "The answer's format is learnt within a few steps and stays.",
        "'the generation probability of correct format answer rise up in a few steps', 'above "
        "95%', 'throughout the entire training process' (section 5.2, finding 1, figure 4)",
        rule(
            f"After {FEW:.0%} of the steps, the answer letters have a mean total probability of "
            f"{MASS:g} or more at every measured point.",
            last,
            LEAST_MASS,
        ),
    ),
    _claim(
        "3b",
        "The entropy at the answer position declines late in fine-tuning.",
        "'focusing on the late training process, we find that the entropy on both benchmark no "
        "longer fluctuate and undergoes a decline trend' (section 5.2, finding 2, figure 4)",
        rule(
            "The entropy at the answer position is lower at the last checkpoint than at the middle "
            "checkpoint, by 0.05 nats or more.",
            last,
            Check(
                what="entropy at the answer position, last checkpoint - middle checkpoint",
                of=lambda at: at.change(at.tuned, at.middle, entropy),
                below=-LEAST_NATS,
                yes="the entropy declines late in fine-tuning",
                no="the entropy does not decline late in fine-tuning",
                unit="nats",
            ),
        ),
    ),
    _claim(
        "3c",
        "Late in fine-tuning, entropy and accuracy fall together, a sign of over-confidence.",
        "'as the model's confidence in its answers intensifies, the precision of its responses to "
        "these questions concomitantly deteriorates' (section 5.2, finding 2)",
        rule(
            "From the middle checkpoint to the last, the entropy falls by 0.05 nats or more. "
            "Accuracy on the same questions with lettered options falls by 2 points or more.",
            last,
            Check(
                what="entropy at the answer position, last checkpoint - middle checkpoint",
                of=lambda at: at.change(at.tuned, at.middle, entropy),
                below=-LEAST_NATS,
                yes="the entropy falls",
                no="the entropy does not fall",
                unit="nats",
            ),
            Check(
                what="accuracy with lettered options, last checkpoint - middle checkpoint",
                of=lambda at: at.change(at.tuned, at.middle, letters),
                below=-LEAST,
                yes="accuracy falls with the entropy",
                no="accuracy does not fall with the entropy",
            ),
        ),
        LETTERS,
    ),
    _claim(
        "3d",
        "After the model has learnt the answer format, its answers keep changing (knowledge "
        "alignment).",
        "'a dynamic alteration in the responses' while the format stays (section 5.2, finding 1, "
        "figure 4)",
        rule(
            f"From {FEW:.0%} to half of the steps, 2 % or more of the answers to questions with "
            "lettered options change from one measured point to the next. The total probability of "
            f"the answer letters stays at {MASS:g} or more.",
            last,
            CHANGING,
            LEAST_MASS,
        ),
    ),
    _claim(
        "4a",
        "Exact memorisation of the fine-tuning data rises during fine-tuning.",
        "'a ascending trend along with the training process' (section 5.2, finding 3, figure 5)",
        rising(
            "The last checkpoint has memorised more of the fine-tuning outputs than the first "
            "checkpoint, by 2 points or more. Between any two checkpoints, memorisation falls by "
            "less than 2 points.",
            last,
            along_checkpoints(memorised),
            what="exact memorisation",
            least=LEAST,
            back=LEAST,
            along="the epochs",
        ),
    ),
    _claim(
        "4b",
        "Memorised data survives restoring.",
        "'these data remains even after restoring the original pattern' (section 5.2, finding 3)",
        rule(
            "Fine-tuning raises the memorisation above the base's. After restoring, the last "
            "checkpoint still has more than half of this rise.",
            last,
            Check(
                what="exact memorisation beyond the base: value after restoring minus half of the "
                "value before restoring",
                of=lambda at: (
                    at.change(at.restored, BASE_MODEL, memorised)
                    - at.change(at.tuned, BASE_MODEL, memorised) * 0.5
                ),
                above=0.0,
                yes="most of the memorised data stays",
                no="less than half of the memorised data stays",
            ),
        ),
        SHIFTED,
        ONE_EPOCH,
        LAST_BACK,
    ),
    _claim(
        "5",
        "A larger model reaches actual forgetting earlier than a smaller model.",
        "13B after 2 epochs, 7B after 4 (section 6, finding 2, figure 6)",
        rule(
            "In the same worlds, the larger model reaches actual forgetting more than one "
            "checkpoint earlier than the smaller model.",
            first,
            Check(
                what="checkpoint at which actual forgetting begins, larger model - smaller model",
                of=Checkpoint.earlier_than_smaller,
                below=-1.0,
                yes="the larger model reaches actual forgetting more than one checkpoint earlier "
                "than the smaller model",
                no="the larger model reaches actual forgetting at most one checkpoint earlier than "
                "the smaller model, or later",
                unit="checkpoints",
            ),
        ),
        KNOWS,
        ONE_EPOCH,
        CHEAP,
        LAST_LOST,
        MODERATE,
        LAST_BACK,
        group=NARROW,
    ),
    _claim(
        "6",
        "Early in fine-tuning, the tuned model scores above the base even without restoring.",
        "'an initial surge, surpassing the baseline, before subsequently diminishing' (section "
        "4.2)",
        Rule(
            "At least one of the first three checkpoints scores above the base by 2 points or "
            "more. Intervals are widened for the three tests.",
            one_tuned_above,
        ),
        KNOWS,
        ROOM,
    ),
    _claim(
        "7a",
        "A model of another size also shows pseudo and actual forgetting.",
        "'the transition of forgetting keeps its consistency across the different LLMs' (section "
        "6, finding 1, figure 6: 13B; here the smaller model)",
        both_stages(
            "Claims 2a and 2b hold for the smaller model.",
            (first_narrow, last_narrow),
            knowledge,
            "smaller model",
        ),
        *stages_of(first_narrow, last_narrow),
        group=NARROW,
    ),
    _claim(
        "7b",
        "Other instruction data also leads to format alignment and knowledge alignment.",
        "the paper finds the same with Vicuna's data in place of Alpaca's (section 6, finding 3, "
        "figure 7)",
        rule(
            "Claims 3a and 3d hold for the models that were tuned on other conversations.",
            last_other,
            LEAST_MASS,
            CHANGING,
        ),
        group=OTHER,
    ),
)
