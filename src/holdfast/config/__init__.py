"""Settings, declared once: a frozen dataclass whose fields have a type, bounds, a default and a
docstring.

```python
@dataclass(frozen=True, kw_only=True)
class Example:
    people: Annotated[int, Meta(ge=2)] = 120
    \"\"\"Whom the base knows; half of them are asked about.\"\"\"
    learning_rate: Annotated[float, Meta(gt=0, group="training")] = 3e-3
    \"\"\"Of pre-training.\"\"\"
```

`declare` reads it, with the docstrings (`docstrings`). Values have kinds (`kinds`): a kind reads
what YAML or a shell gives, says in words what it expects, and has a JSON Schema. What a file
(`yaml_text`, `yaml_file`) and a command line (`command_line`) say is a `raw_request`; `decode`
makes a settings value of it, with every mistake at once, each with its line and the nearest name
(`synonyms`). `help` writes `--help`, `schema` the schemas for editors, and a fingerprint is taken
of what is `deciding`. TRL's dataclasses are read by the same rules. Nothing here imports torch,
transformers or pydantic.
"""
