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
        "small": "10 minutes and, the first time, 25 for its models",
        "medium": "an hour and, the first time, six hours for its models",
    },
    rules=1,
    function="holdfast.papers.residual.reproduction:reproduce",
)
