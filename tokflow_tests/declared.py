"""Old names of `tiny`, until every test calls those."""

from tokflow_tests.tiny import TEXTS, copy_of, write_raw  # noqa: F401
from tokflow_tests.tiny import declare_small as dataset  # noqa: F401
from tokflow_tests.tiny import write_yaml as declare  # noqa: F401
