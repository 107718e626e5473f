"""The commands of the transcripts that carry arrays and columns, and those on checkpoints in shards."""

from __future__ import annotations

from collections.abc import Iterator


def of_kept() -> Iterator[str]:
    """Yield what is carried, and checkpoints in shards."""
    mean = "mpired reduce --op mean --columns w --keep mask"
    for to in ("csv", "json", "text", "table"):
        yield f"mpired reduce --op max --columns v --keep key --nulls ignore null1.parquet null2.parquet --to {to}"
    for words in (
        "-o new",
        "-o one.safetensors",
        "-o new --dry-run",
        "-o new/x.safetensors.index.json --json",
        "--in-place",
    ):
        yield f"{mean} checkpoint0 checkpoint1/model.safetensors.index.json {words}"
    yield f"{mean} checkpoint0 checkpoint1 -o checkpoint2"
    yield f"{mean} -f checkpoint0 checkpoint1 -o checkpoint2"
    for to in ("npz", "h5", "nc"):
        yield f"{mean} checkpoint0 checkpoint1 -o one.{to}"
    for form, to in (("npz", "h5"), ("h5", "zarr.zip"), ("zarr", "safetensors"), ("safetensors", "npz")):
        yield f"mpired reduce --op mean,max --columns v --keep n d0.{form} d1.{form} -o out.{to}"
    for rule in ("--nulls ignore", "--nulls propagate", "--nulls propagate --missing 3"):
        for words in ("0 null", "null 0", "0 5"):
            yield f"mpired compare-and-swap {rule} --columns n i1.parquet {words}"
    yield "mpired info checkpoint0 && mpired diff checkpoint0 checkpoint1"
    yield "mpired scan --op max --columns w checkpoint0 checkpoint1 -o 'new{rank}'"
    yield "mpired accumulate --op sum --columns w checkpoint0 checkpoint1"
