"""A request with stages as runs one after the other, each from the result of the one before.

```yaml
output_dir: runs/llava
stages:
  - {train_only: [multi_modal_projector], learning_rate: 1e-3, dataset_name: captions.jsonl}
  - {learning_rate: 2e-5}
```

A stage has the request's settings and its own over them; a `dataset_name` of its own replaces the request's `datasets`,
and the other way round. Each is a run with a folder, a record, measurements and a page of its own: the last in
`output_dir`, those before beside it (`runs/llava-stage-1`). So a request that was interrupted goes on in the stage that
it had reached, and what a method keeps of "the start" is a stage's own start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.support.environment import say

if TYPE_CHECKING:
    from holdfast.records.run import RunFolder
    from holdfast.runs.config import TrainConfig


def stage_settings(settings: Mapping[str, Any], stages: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    """One stage's settings, which are a request without stages.

    Args:
        settings: of the whole request, with an `output_dir`.
        stages: what each says over them.
        number: from 0.
    """
    whole, last = {k: v for k, v in settings.items() if k != "stages"}, number == len(stages) - 1
    folder = str(settings["output_dir"])
    start = {} if number == 0 else {"model_name_or_path": f"{folder}-stage-{number}", "model_revision": "main"}
    output = folder if last else f"{folder}-stage-{number + 1}"
    return {**over_request(whole, stages[number]), **start, "output_dir": output}


def over_request(whole: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    """A request's settings with a stage's over them, without those that name the rows which the stage's own replace."""
    replaced: set[str] = set()
    if stage.get("dataset_name"):
        replaced |= {"datasets"}
    if stage.get("datasets"):
        replaced |= {"dataset_name", "dataset_config", "dataset_train_split"}
    return {**{name: value for name, value in whole.items() if name not in replaced}, **stage}


def stages_of(config: TrainConfig) -> Iterator[TrainConfig]:
    """The configurations of a request's stages, each made when it is asked for: the model that it begins with has to be
    there by then.

    Raises:
        ConfigError: see `train_config`.
    """
    from holdfast.runs.config import train_config

    for number in range(len(config.stages)):
        yield train_config(stage_settings(config.resolved, config.stages, number))


def train_stages(config: TrainConfig, train: Callable[[TrainConfig], RunFolder], console: Any) -> RunFolder:
    """Trains them in turn; those that are finished are passed over.

    Returns:
        The last one's folder.
    """
    for number, stage in enumerate(stages_of(config), 1):
        say(console, f"Stage {number} of {len(config.stages)}: {stage.training.output_dir}")
        folder = train(stage)
    return folder
