"""Settings, declared once: a frozen dataclass whose fields have a type, bounds, a default and a docstring.

```python
@dataclass(frozen=True, kw_only=True)
class Example:
    people: Annotated[int, Meta(ge=2)] = 120
    \"\"\"Whom the base knows; half of them are asked about.\"\"\"
    learning_rate: Annotated[float, Meta(gt=0, group="training")] = 3e-3
    \"\"\"Of pre-training.\"\"\"
```

From that one declaration come: what a YAML file and a command line may say and how values are coerced (`values`,
`decode`, `yaml_file`, `command_line`), every mistake at once with its line and the nearest name, `--help` and the
tables of keys in the documentation (`help`), JSON Schema for editors (`schema`), and what a fingerprint is taken of
(`deciding`). TRL's dataclasses are read by the same engine. Nothing here imports torch, transformers or pydantic.
"""
