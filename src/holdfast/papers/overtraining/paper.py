"""The paper of `holdfast reproduce overtraining`."""

from holdfast.papers.claims.registry import Paper

PAPER = Paper(
    name="overtraining",
    title="Overtrained Language Models Are Harder to Fine-Tune",
    short="Overtrained Language Models",
    about="Overtraining: does longer pre-training make a model harder to fine-tune, and does retention help?",
    recipes={
        "budgets": "models pre-trained on rising amounts of a small world's text, then probed and "
        "fine-tuned in several ways",
        "pictures": "the same models with a vision tower, which learn pictures and should keep "
        "their text ability",
        "olmo_1b": "OLMo-1B's public checkpoints, tuned on instructions (no small version; use "
        "--on)",
        "olmo_2_7b": "OLMo-2-7B's public checkpoints, tuned on instructions (no small version; "
        "use --on)",
    },
    durations={
        "quick": "two minutes per recipe",
        "small": "about an hour and a quarter (estimate), half of it for the ladder and its text",
        "medium": "about eleven hours (estimate): two for the ladder, six for its text, three for "
        "pictures",
    },
    rules=3,  # the rates that the paper reads, overtrained ladders, equal rate and equal target
    function="holdfast.papers.overtraining.reproduction:reproduce",
)
