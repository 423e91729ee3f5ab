"""The stages of a build of a corpus: their tasks, requests, bytes and seconds."""

import math
from collections import Counter
from dataclasses import dataclass

from benchmarks.scale_costs import CLOUDS, UNITS, StoreSpeed
from benchmarks.scale_requests import Shape, built, got, pages, read_raw, times, total
from tokflow.pipeline.output_tasks import KEPT_HERE_BYTES

SPEED = StoreSpeed()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """All tasks of one stage, of all datasets: each is done by one worker alone, all are alike."""

    name: str
    num_tasks: int
    requests: Counter
    read_bytes: float = 0
    """Of a task; so are the next ones."""
    read_requests: float = 0
    cpu_seconds: float = 0
    """Of one core, while what it reads comes."""
    write_bytes: float = 0
    num_puts: float = 0
    """Requests that write, except the one for the manifest, which is put last."""
    driver_seconds: float = 0.0
    """Of each task, in the one process that hands out those of a dataset."""
    num_events: int = 0
    """Of Dagster's history, if it is kept."""
    num_fetched: int = 0
    """Manifests and logs of each task that this process asks for if another machine does it, many
    at once."""

    def seconds(self, num_machines, machine, *, num_drivers):
        """Return how long so many machines take: rounds of one task for each core, or as long as
        what hands them out, the networks, or the requests a second that the store lets through,
        take at least."""
        speed, num_tasks = SPEED, self.num_tasks
        reading = self.read_bytes / (2 * speed.connection_bytes_per_second)
        working = max(self.cpu_seconds / machine.core_speed, reading, speed.first_byte_seconds)
        writing = max(self.write_bytes / speed.connection_bytes_per_second, speed.put_seconds)
        rounds = math.ceil(num_tasks / min(num_tasks, num_machines * machine.num_cores))
        network = num_machines * machine.bytes_per_second
        fetched = self.num_fetched if num_drivers < num_machines else 0
        waits = fetched * speed.first_byte_seconds / UNITS.requests_at_once
        return max(
            rounds * (working + writing + speed.put_seconds),
            num_tasks * (self.driver_seconds + waits) / num_drivers,
            num_tasks * max(self.read_bytes, self.write_bytes) / network,
            num_tasks * self.read_requests / speed.gets_per_second,
            num_tasks * (self.num_puts + 1) / speed.puts_per_second,
        )


def shape_of(corpus, *, is_of_cluster=False):
    """Return the outputs of one of the datasets, with one export that is packed; made by one
    machine, or by those of a cluster, which put all segments at the URL."""
    of_dataset = corpus.text_bytes / corpus.num_datasets
    of_file = corpus.text_bytes / corpus.num_files
    sizes = {"tokens": of_file, "export": of_dataset}
    tokens = corpus.num_tokens / corpus.num_datasets
    num_files = math.ceil(tokens / UNITS.tokens_per_export_file)
    file_bytes = tokens / num_files * UNITS.export_bytes_per_token
    index_bytes = corpus.num_documents / corpus.num_datasets * UNITS.index_bytes
    return Shape(
        num_files=round(corpus.num_files / corpus.num_datasets),
        num_ranges=corpus.ranges_per_file if corpus.ranges_per_file > 1 else 0,
        token_bytes=corpus.token_bytes / (corpus.num_files * corpus.ranges_per_file),
        tokenizer_files=2,
        export_files=((file_bytes,) * num_files + (index_bytes,),),
        has_export_segments=True,
        published=[of for of, size in sizes.items() if is_of_cluster or size > KEPT_HERE_BYTES],
    )


def stages_of(corpus, *, is_of_cluster=False):
    """Return the stages, as workers do them that have nothing in their caches: of machines that
    build datasets of their own, or of a cluster with one process that hands out the work."""
    shape = shape_of(corpus, is_of_cluster=is_of_cluster)
    requests = {name: times(of, corpus.num_datasets) for name, of in built(shape).items()}
    stages = [_raw(corpus, shape), _tokens(corpus, shape, requests)]
    if "tokens" in shape.published and shape.num_ranges:
        stages.append(_join(corpus, requests))
    return [*stages, _rows(corpus, requests), _export(corpus, shape, requests), _index(corpus)]


def _puts(requests, num_tasks):
    """Return how many requests of a task write something, but for its manifest."""
    kinds = ("PUT", "COPY", "BEGIN", "PART", "COMPLETE")
    return sum(requests[kind] for kind in kinds) / num_tasks - 1


def _raw(corpus, shape):
    """The files are listed, with their sizes and ETags."""
    num = corpus.num_datasets
    listed = pages(shape.num_files)
    return Stage(
        name="raw",
        num_tasks=num,
        read_requests=listed,
        requests=Counter(LIST=num * listed),
        num_events=corpus.num_files,
    )


def _tokens(corpus, shape, requests):
    """Segments that stay on the machine are joined there, and put at the URL once."""
    num = corpus.num_files * corpus.ranges_per_file
    raw = read_raw(num, corpus.raw_bytes)
    made = requests["tokens"] if "tokens" not in shape.published else Counter()
    made = total([made, requests.get("segments of tokens", Counter())])
    return Stage(
        name="tokens",
        num_tasks=num,
        read_bytes=corpus.raw_bytes / num,
        read_requests=raw["GET"] / num,
        cpu_seconds=corpus.text_bytes / num * UNITS.tokens_seconds_per_text_byte
        + UNITS.output_seconds,
        write_bytes=(corpus.token_bytes + corpus.num_documents * UNITS.document_bytes) / num,
        num_puts=_puts(made, num),
        requests=total([raw, made]),
        driver_seconds=UNITS.driver_seconds,
        num_events=corpus.num_files,
    )


def _join(corpus, requests):
    """A worker asks for the manifests and logs of segments, lets the server copy their files, many
    at once, and removes them."""
    num, num_ranges = corpus.num_files, corpus.ranges_per_file
    made = requests["tokens"] + Counter(GET=num * num_ranges)
    rounds = math.ceil(2 * num_ranges / UNITS.requests_at_once)
    waits = 2 * rounds * SPEED.first_byte_seconds + rounds * SPEED.put_seconds
    return Stage(
        name="join",
        num_tasks=num,
        read_requests=made["GET"] / num,
        cpu_seconds=(waits + 4 * SPEED.first_byte_seconds) * CLOUDS[0].machine.core_speed,
        num_puts=_puts(made, num),
        requests=made,
        driver_seconds=UNITS.driver_seconds,
        num_fetched=2,
    )


def _rows(corpus, requests):
    documents, num = corpus.num_documents / corpus.num_files, corpus.num_files
    made = total([requests["split"], requests["sequences"]])
    return Stage(
        name="split, sequences",
        num_tasks=num,
        read_bytes=documents * UNITS.document_bytes,
        read_requests=corpus.ranges_per_file,
        cpu_seconds=documents * UNITS.rows_seconds_per_document + 2 * UNITS.output_seconds,
        write_bytes=documents * UNITS.span_bytes,
        num_puts=_puts(made, num),
        requests=made + Counter(GET=num * corpus.ranges_per_file),
        driver_seconds=2 * UNITS.driver_seconds,
        num_events=2 * num,
        num_fetched=4,
    )


def _export(corpus, shape, requests):
    """Token files are read whole, each by the tasks whose sequences it has: a cache has not room
    for all."""
    num = corpus.num_datasets * (len(shape.export_files[0]) - 1)
    of_one = corpus.token_bytes / (corpus.num_files * corpus.ranges_per_file)
    read_files = corpus.token_bytes / num / of_one + 1
    read = Counter(GET=round(num * read_files * (got(of_one)["GET"] + 1)))
    made = total(each for name, each in requests.items() if "export" in name)
    return Stage(
        name="export",
        num_tasks=num,
        read_bytes=read_files * of_one,
        read_requests=read["GET"] / num,
        cpu_seconds=corpus.num_tokens / num * UNITS.export_seconds_per_token + UNITS.output_seconds,
        write_bytes=corpus.num_tokens / num * UNITS.export_bytes_per_token,
        num_puts=_puts(made, num),
        requests=total([read, made]),
        driver_seconds=UNITS.driver_seconds,
        num_events=corpus.num_datasets,
        num_fetched=2,
    )


def _index(corpus):
    """One task of each dataset, beside those of the export, which counts what it puts."""
    documents = corpus.num_documents / corpus.num_datasets
    files = corpus.num_files / corpus.num_datasets
    read_files = round(files * (2 + corpus.ranges_per_file))
    read = Counter(GET=corpus.num_datasets * read_files)
    return Stage(
        name="index",
        num_tasks=corpus.num_datasets,
        read_bytes=documents * (UNITS.document_bytes + UNITS.span_bytes),
        read_requests=read_files,
        cpu_seconds=documents * UNITS.index_seconds_per_document,
        write_bytes=documents * UNITS.index_bytes,
        requests=read,
    )
