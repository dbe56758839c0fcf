"""The paper of `holdfast reproduce overtraining`."""

from holdfast.papers.claims.registry import Paper

PAPER = Paper(
    name="overtraining",
    title="Overtrained Language Models Are Harder to Fine-Tune",
    short="Overtrained Language Models",
    about="Overtraining: does longer pre-training make a model harder to fine-tune, and does retention help?",
    recipes={
        "budgets": "a ladder of a small world's text, probed and fine-tuned in several ways",
        "pictures": "the same ladder with a vision tower: it learns pictures and should keep "
        "language",
        "olmo_1b": "OLMo-1B's public checkpoints, tuned on instructions (no small version; use "
        "--on)",
        "olmo_2_7b": "OLMo-2-7B's public checkpoints, tuned on instructions (no small version; "
        "use --on)",
    },
    durations={
        "quick": "two minutes a recipe",
        "small": "an estimated hour and a quarter, half of it for the ladder and its text",
        "medium": "an estimated eleven hours: two for the ladder, six for its text, three for "
        "pictures",
    },
    rules=3,  # the rates that the paper reads, overtrained ladders, equal rate and equal target
    function="holdfast.papers.overtraining.reproduction:reproduce",
)
