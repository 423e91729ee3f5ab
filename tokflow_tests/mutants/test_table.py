from tokflow_tests.mutants.__main__ import ROOT, StaleError, locate
from tokflow_tests.mutants.table import MUTANTS


def test_every_mutation_can_be_made_and_its_test_is_there():
    problems = {}
    for mutant in MUTANTS:
        try:
            locate(mutant, ROOT)
        except StaleError as error:
            problems[mutant.fault] = str(error)

    assert problems == {}, "write them anew in tokflow_tests/mutants/table.py"
