"""The module of a fork server that imports nothing but its tasks."""

from tokflow.pools.local import be_fork_server

be_fork_server("tokflow_tests.pools.pool_tasks")
