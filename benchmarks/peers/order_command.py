"""The command of each peer whose order is looked at.

    python -m benchmarks.peers.NAME ORDER SIZE SEED PLACES NUMBERS

PLACES is an .npy of places, in ascending order; the numbers of the rows there go to NUMBERS. It
prints the seconds of one core that they took, imports left out.
"""

import sys
import time

import numpy as np


def run(orders):
    """Do what the command line asks.

    orders: by name a function of size and seed, which returns one that takes places to numbers.
    """
    name, size, seed, asked, answered = sys.argv[1:]
    places = np.load(asked)
    order = orders[name](int(size), int(seed))
    order(places[:1])  # what is made once
    started = time.process_time()
    numbers = order(places)
    print(time.process_time() - started)
    np.save(answered, np.asarray(numbers, dtype=np.int64))
