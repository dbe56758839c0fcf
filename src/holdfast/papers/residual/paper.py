"""The paper of `holdfast reproduce residual`."""

from holdfast.papers.claims.registry import Paper

PAPER = Paper(
    name="residual",
    title="Balancing Continuous Pre-Training and Instruction Fine-Tuning (the instruction residual)",
    short="Balancing Continuous Pre-Training",
    about="Balancing Continuous Pre-Training and Instruction Fine-Tuning: budgets, siblings, scales, sizes",
    recipes={"residual": "instruction residual"},
    durations={
        "quick": "two minutes",
        "small": "10 minutes, plus 25 minutes on the first run to train its models",
        "medium": "an hour, plus six hours on the first run to train its models",
    },
    rules=1,
    function="holdfast.papers.residual.reproduction:reproduce",
)
