import subprocess
import sys

import pytest

from tokflow.pools.machine import PeakMemory

HOLD = (
    "import time; held = bytearray(b'1') * 200_000_000; print(len(held), flush=True); time.sleep(9)"
)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_the_peak_has_the_memory_of_processes_that_were_started():
    with PeakMemory() as alone:
        pass
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with PeakMemory() as both:
            pass
        child.kill()

    assert alone.num_bytes is not None
    assert both.num_bytes is not None
    assert both.num_bytes - alone.num_bytes > 190_000_000
