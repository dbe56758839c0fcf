"""The paper of `holdfast reproduce stages`."""

from holdfast.papers.claims.registry import Paper

WORLDS = range(6, 16)
"""Those that nobody looked at before these rules; of the first six the regime was chosen on world 0."""

PAPER = Paper(
    name="stages",
    title="Pattern Shifting or Knowledge Losing? A Forgetting Perspective for Understanding the Effect of Instruction "
    "Fine-Tuning",
    short="Pattern Shifting or Knowledge Losing",
    about="Stages of forgetting: is knowledge lost, or is it only not shown?",
    recipes={
        "world-0": "ten epochs on new people, then every checkpoint restored with three amounts of "
        "text (world 0, which was used to choose the settings)",
        **{
            f"world-{number}": f"the study of world 0, repeated in world {number}"
            for number in WORLDS
        },
        **{f"narrow-{number}": f"world {number} with a smaller model" for number in WORLDS[:6]},
        **{f"other-{number}": f"world {number} with other conversations" for number in WORLDS[:3]},
        "narrow-0": "world 0 with a smaller model",
        "other-0": "world 0 with other conversations",
    },
    durations={
        "quick": "five minutes",
        "small": "an estimated 10 minutes (25 minutes the first time, with its base)",
        "medium": "an estimated three hours (three and a half more the first time, for its bases)",
    },
    function="holdfast.papers.stages.reproduction:reproduce",
    rules=1,  # restored at the paper's dose, held against the base and the control
)
