"""The paper of `holdfast reproduce stages`."""

from holdfast.papers.claims.registry import Paper

PAPER = Paper(
    name="stages",
    title="Pattern Shifting or Knowledge Losing? A Forgetting Perspective for Understanding the Effect of Instruction "
    "Fine-Tuning",
    short="Pattern Shifting or Knowledge Losing",
    about="Stages of forgetting: has it forgotten, or does it only not show it?",
    recipes={
        "world-0": "ten epochs on new people, every checkpoint restored: the first world",
        "world-1": "the same on the second world",
        "world-2": "the same on the third world",
        "world-3": "on the fourth",
        "world-4": "on the fifth",
        "world-5": "on the sixth",
        "narrow-0": "the first world with a smaller model",
        "narrow-1": "the second world with a smaller model",
        "narrow-2": "the third world with a smaller model",
    },
    durations={
        "quick": "two minutes",
        "small": "6 minutes and, the first time, 15 for its base",
        "medium": "40 minutes by estimate and, the first time, an hour and three quarters for its bases",
    },
    function="holdfast.papers.stages.reproduction:reproduce",
)
