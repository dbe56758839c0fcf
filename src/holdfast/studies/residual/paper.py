"""Paper 004, as `holdfast reproduce` lists it."""

from holdfast.studies.engine.papers import Paper

PAPER = Paper(
    name="residual",
    title="Balancing Continuous Pre-Training and Instruction Fine-Tuning (the instruction residual)",
    about="Balancing Continuous Pre-Training and Instruction Fine-Tuning: budgets, sibling residuals",
    recipes={"residual": "instruction residual"},
    durations={"quick": "a minute", "look": "13 minutes", "thorough": "13 minutes"},
    function="holdfast.studies.residual.reproduction:reproduce",
    full="the paper's own sizes are study files, as in 'holdfast residual study --config "
    "configs/residual/llama3-budgets.yaml'",
)
