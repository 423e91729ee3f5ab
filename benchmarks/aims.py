"""What the issue asks for, against what was measured."""

from benchmarks.programs import CORE, RAW_ENGINE

PEER_RATIO = 15
PEER_BYTES = 300_000_000
PEAK_BYTES = 700_000_000


def aims(blocks):
    """Yield a line per aim: met or MISSED, with the numbers.

    `blocks` is a list of (title, bytes of text, results).
    """
    for title, text_bytes, results in blocks:
        measured = {one.program.name: one for one in results if one.runs}
        core = measured.get(CORE.name)
        if core is None:
            continue
        if raw := measured.get(RAW_ENGINE.name):
            yield line(
                title,
                core.wall_seconds <= raw.wall_seconds,
                f"core {core.wall_seconds:.2f} s, raw engine {raw.wall_seconds:.2f} s",
            )
        if text_bytes >= PEER_BYTES:
            yield from peer_aims(title, core, results)
        peak = f"peak of the core {core.peak_bytes / 1e6:.0f} MB, aim {PEAK_BYTES / 1e6:.0f} MB"
        yield line(title, core.peak_bytes < PEAK_BYTES, peak)


def peer_aims(title, core, results):
    """Yield one line for the fastest peer: where it is met, it is met for all."""
    peers = [one for one in results if one.program.is_peer and one.runs]
    if peers:
        fastest = min(peers, key=lambda one: one.wall_seconds)
        ratio = fastest.wall_seconds / core.wall_seconds
        yield line(
            title,
            ratio >= PEER_RATIO,
            f"the fastest of {len(peers)} peers, {fastest.program.name}, takes {ratio:.1f} times "
            f"as long as the core, aim {PEER_RATIO}",
        )


def line(title, is_met, numbers):
    return f"  {'met' if is_met else 'MISSED':8}{title:28}{numbers}"
