"""Problems of a request know the key that they are about."""

from __future__ import annotations

import copy
import pickle

from holdfast.config.raw_request import RawRequest
from holdfast.errors import ConfigError, Problem, problem_of


def test_errors_problem_is_a_sentence_with_a_path() -> None:
    problem = Problem(("label_annealing", "weight"), "expected at least 0, got -1.").below("retention", 1)
    assert problem == "retention[1].label_annealing.weight: expected at least 0, got -1."
    assert problem.path == ("retention", 1, "label_annealing", "weight")
    assert problem.text == "expected at least 0, got -1."
    for same in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert (same, same.path, same.text) == (problem, problem.path, problem.text)


def test_errors_plain_sentences_are_about_the_request_as_a_whole() -> None:
    assert problem_of("weight: is a word here").path == ()
    error = ConfigError(["first", Problem("seed", "second")], source="run.yaml")
    assert [problem.path for problem in error.problems] == [(), ("seed",)]
    assert str(error) == "2 problems in run.yaml:\n  - first\n  - seed: second"


def test_errors_problem_of_a_file_names_the_line_of_its_key() -> None:
    given = RawRequest(file="run.yaml", lines={("retention",): 4, ("retention", 0, "sfa", "p"): 6})
    sentences = given.sentences([Problem(("retention", 0, "sfa", "p"), "a"), Problem(("retention", 0, "ema"), "b")])
    assert sentences == ["line 6: retention[0].sfa.p: a", "line 4: retention[0].ema: b"]
