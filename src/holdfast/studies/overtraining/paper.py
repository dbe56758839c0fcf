"""The paper of `holdfast reproduce overtraining`."""

from holdfast.studies.engine.papers import Paper

PAPER = Paper(
    name="overtraining",
    title="Overtrained Language Models Are Harder to Fine-Tune",
    short="Overtrained Language Models",
    about="Overtraining: does longer pre-training make a model harder to fine-tune, and does retention help?",
    recipes={"budgets": "a ladder of a small world's text, probed and fine-tuned in several ways"},
    durations={
        "quick": "two minutes",
        "look": "35 minutes",
        "thorough": "ten hours by estimate: four for the ladder, and six for the study",
    },
    function="holdfast.studies.overtraining.reproduction:reproduce",
    full="the paper's own ladders take study files: 'holdfast ladder train --config configs/ladder/paper.yaml' and "
    "'holdfast overtraining --config configs/overtraining/olmo-1b.yaml'",
)
