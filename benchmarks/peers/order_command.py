"""The command of each peer whose order is looked at.

    python -m benchmarks.peers.NAME ORDER SIZE SEED PLACES NUMBERS

PLACES is an .npy of places, in ascending order; the numbers of the rows there go to NUMBERS. It
prints the seconds of one core that they took, imports left out.
"""

import argparse
import time
from pathlib import Path

import numpy as np


def run(orders):
    """Do what the command line asks.

    orders: by name a function of size and seed, which returns one that takes places to numbers.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("order", choices=orders)
    for name, kind in (("size", int), ("seed", int), ("places", Path), ("numbers", Path)):
        parser.add_argument(name, type=kind)
    request = parser.parse_args()
    places = np.load(request.places)
    order = orders[request.order](request.size, request.seed)
    order(places[:1])  # what is made once
    started = time.process_time()
    numbers = order(places)
    print(time.process_time() - started)
    np.save(request.numbers, np.asarray(numbers, dtype=np.int64))
