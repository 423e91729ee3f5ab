from tokflow_tests.mutants.__main__ import problem_of
from tokflow_tests.mutants.table import MUTANTS


def test_every_mutation_can_be_made_and_its_tests_are_there():
    problems = {of.fault: problem for of in MUTANTS if (problem := problem_of(of))}

    assert problems == {}, "write them anew in tokflow_tests/mutants/table.py"
