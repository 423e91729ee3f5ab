"""Where work runs: this process, or processes of this machine.

What runs there is a task: all that a worker needs to do something alone. It leaves what it makes in
the store, so that a result is no more than that it is there.
"""
