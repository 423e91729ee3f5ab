"""The constants of `benchmarks/scale.py`: what is measured, what is assumed, and list prices.

Put in your own: everything that is computed from them is computed anew by `make bench-scale`.
"""

from dataclasses import dataclass, field

GB = 1e9
TB = 1e12
HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Raw files of one size, and what is in them."""

    name: str
    num_datasets: int
    """It is declared as so many, built apart: a worker that writes an export holds the manifests of
    all files of one."""
    num_files: int
    """Of all datasets."""
    raw_bytes: float
    num_tokens: float
    tokens_per_document: float
    text_bytes_per_token: float
    ranges_per_file: int
    """Tasks of the tokens of one file; 1 where it is read whole."""
    itemsize: int = 2

    @property
    def num_documents(self) -> float:
        """Documents of all files."""
        return self.num_tokens / self.tokens_per_document

    @property
    def text_bytes(self) -> float:
        """Bytes of UTF-8."""
        return self.num_tokens * self.text_bytes_per_token

    @property
    def token_bytes(self) -> float:
        """Bytes of the token ids."""
        return self.num_tokens * self.itemsize


FINEWEB = Corpus(
    name="FineWeb",
    num_datasets=96,  # its crawls
    num_files=27_000,
    raw_bytes=44 * TB,  # of parquet; both as issue 15 and the dataset's own page say
    num_tokens=15e12,  # GPT-2's, as its page says
    tokens_per_document=700,  # its sample-10BT: 10.4e9 tokens of 14.9 million documents
    text_bytes_per_token=4.5,  # English of the web in GPT-2's tokens: 4.3 to 4.7
    ranges_per_file=39,  # of 2.5 GB of text: documents/ranges.py has 64 MB in each
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Costs of one thing, measured on this project's machines; each with where it stands."""

    tokens_seconds_per_text_byte: float = 9.4 / GB
    """One core. LOG 2026-11-22 "every core, groups and commits together": 1 GB in 8 parquet files,
    11.2 s of CPU with two workers, less 0.85 for the export, 0.1 for split and sequences, 0.9 for
    imports and engines."""
    rows_seconds_per_document: float = 0.17e-6
    """Split and sequences together, one core: 16 million documents of 8 tokens in 64 files,
    2026-11-23."""
    export_seconds_per_token: float = 36e-9
    """parquet, one core: the same entry, 9 s of CPU for 248 million tokens."""
    index_seconds_per_document: float = 0.14e-6
    """One core: the bin export of those 16 million documents, nearly all of which is its index."""
    tokens_per_export_file: float = 125e6
    """Of formats of columns, unless `shards` or `shard_size` says otherwise; one task each."""
    export_bytes_per_token: float = 1.6
    """parquet in rows of 2,048, GPT-2's tokens of wikitext-2, 2026-11-23."""
    document_bytes: float = 14.0
    """Of documents.parquet for each document: 20,000 documents of 660 tokens in 4 files."""
    span_bytes: float = 6.6
    """Of spans.parquet and segments.parquet together: the same."""
    index_bytes: float = 6.0
    """Of index.parquet: the same."""
    requests_at_once: int = 32
    """Of one process, as `store/remote` has them."""
    output_seconds: float = 2.4e-3
    """CPU of any output besides its content: the same entry, "CPU per output 2.4 ms"."""
    driver_seconds: float = 1.2e-3
    """Of those, in the process that hands out the tasks; assumed to be half."""
    history_seconds: float = 37e-3
    """CPU that Dagster's history takes for each raw file of a first build (SQLite), four events:
    LOG 2026-11-22 "Dagster, transform, shuffle", 48.4 s for 1,000 files with, 10.6 s without."""
    history_bytes: float = 40e3
    """Of history for each raw file: DAGSTER.md, 10 kB for each partition of each asset."""


UNITS = Units()


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSpeed:
    """How fast an object store answers."""

    first_byte_seconds: float = 0.03
    """Of GET, HEAD and LIST; S3's guide says 100 to 200 ms for large objects at worst, small ones
    take 20 to 40."""
    put_seconds: float = 0.05
    connection_bytes_per_second: float = 85e6
    """Of one request: S3's performance guide, 85 to 90 MB/s."""
    puts_per_second: float = 3_500
    """PUT, COPY, POST and DELETE of one prefix before it is split: S3's performance guide."""
    gets_per_second: float = 5_500
    """GET and HEAD of one prefix: the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One kind of machine, and what an hour of it costs."""

    name: str
    num_cores: int
    """As the operating system counts them."""
    bytes_per_second: float
    """Of its network, each way."""
    dollars_per_hour: float
    core_speed: float = 0.6
    """Of the measured core, when all are busy. Assumed: two of a cloud's "vCPU" share one core, and
    nobody has measured tokflow on more than two cores yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """List prices of one cloud, without taxes, free tiers and discounts."""

    cloud: str
    machine: Machine
    put_per_1000: float
    """PUT, COPY, POST, LIST; Google calls them class A."""
    get_per_1000: float
    """GET, HEAD; class B."""
    storage_per_gb_month: tuple[tuple[float, float], ...]
    """Up to so many GB, so much for each; the last is for all above."""
    egress_per_gb: tuple[tuple[float, float], ...] = field(default=())
    """To the internet, in the same form."""


# 2025 list prices, from memory: check them at aws.amazon.com/s3/pricing and /ec2/pricing
AWS = Prices(
    cloud="AWS, us-east-1",
    machine=Machine(
        name="c7i.16xlarge", num_cores=64, bytes_per_second=25e9 / 8, dollars_per_hour=2.856
    ),
    put_per_1000=0.005,
    get_per_1000=0.0004,
    storage_per_gb_month=((50e3, 0.023), (500e3, 0.022), (float("inf"), 0.021)),
    egress_per_gb=((10e3, 0.09), (50e3, 0.085), (150e3, 0.07), (float("inf"), 0.05)),
)
# 2025 list prices: storage as in cloud.google.com/storage/pricing-examples, machine from memory;
# check them at cloud.google.com/storage/pricing and /compute/all-pricing
GOOGLE = Prices(
    cloud="Google Cloud, us-central1",
    machine=Machine(
        name="n2-standard-64", num_cores=64, bytes_per_second=32e9 / 8, dollars_per_hour=3.107
    ),
    put_per_1000=0.005,
    get_per_1000=0.0004,
    storage_per_gb_month=((float("inf"), 0.020),),
    egress_per_gb=((1e3, 0.12), (10e3, 0.11), (float("inf"), 0.08)),
)
CLOUDS = (AWS, GOOGLE)

WORKSTATION = Machine(
    name="workstation", num_cores=16, bytes_per_second=1e9 / 8, dollars_per_hour=0, core_speed=1
)
"""One's own, with 16 real cores and a line of 1 Gbit/s to the store."""


def tiered(amount: float, tiers: tuple[tuple[float, float], ...]) -> float:
    """Return the dollars for an amount of which each part has the price of its tier."""
    dollars = below = 0.0
    for up_to, price in tiers:
        dollars += max(0.0, min(amount, up_to) - below) * price
        below = up_to
    return dollars
