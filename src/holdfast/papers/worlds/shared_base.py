"""The base that the studies share: about a million parameters that know things.

It has read source of the standard library (two thirds of its tokens), text about the people of the
embedded world (a quarter), articles of worked word problems and prose of Python's reference: 5
million tokens twice, 10.5 million in all. So there are four kinds of knowledge that training can
cost, each with held-out questions: facts asked in a wording that was never told of these people,
held-out source and prose, and the solutions of problems that were not told.

It is the base of a world (`worlds.world`): the world's instruct model, articles and questions
belong to it.

```python
make_base(shared_world())                       # the checkpoint's folder, made once and cached
build_world(shared_world(), "runs/world")       # the same base, with the world's models and files
```

`holdfast quickstart` has a smaller one, which the package carries.
"""

from __future__ import annotations

from typing import Any

from holdfast.papers.worlds.world import SHARED, WorldRecipe, quick_recipe


def shared_world(**changes: Any) -> WorldRecipe:
    """The recipe of the world whose base the studies share. `changes`: of its fields; those of the
    base make another base."""
    return WorldRecipe(**{**SHARED, **changes})


def quick_shared_world(**changes: Any) -> WorldRecipe:
    """The same of seconds, which shows that everything works and knows next to nothing."""
    shares = {name: value for name, value in SHARED.items() if name.endswith("_share")}
    return quick_recipe(**{**shares, "new_people": 6, "context": 96, "tellings": 3, **changes})
