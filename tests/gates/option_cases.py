"""The commands of the transcripts with each option that each command takes."""

import itertools
import re
from collections.abc import Iterator

import click

from mpired.cli import cli

# The arguments of each command, to which the cases of options add an option.
BASES = {
    "reduce": "--op sum d0.npy d1.npy -o out.npy",
    **dict.fromkeys(
        ("allreduce", "scan", "exscan", "reduce-scatter-block"), "--op sum d0.npy d1.npy -o out_{rank}.npy"
    ),
    "reduce-scatter": "--op sum d0.npy d1.npy --counts 4,6 -o out_{rank}.npy",
    **dict.fromkeys(("reduce-local", "accumulate"), "--op sum d0.npy d1.npy"),
    "get-accumulate": "--op sum d0.npy d1.npy --fetch old.npy",
    "fetch-and-op": "--op sum d0.npy 5",
    "compare-and-swap": "z.npy 0 7",
    "info": "d0.npy d0.parquet",
    "show": "d0.npy",
    "diff": "d0.npy d1.npy",
    "locate": "--op maxloc d0.npy d1.npy",
    "pack": "--type 'vector(2,1,3,uint8_t)' records.bin -o packed.bin",
    "unpack": "--type 'vector(2,1,3,uint8_t)' records.bin -o unpacked.bin",
    "recover": "d0.npy",
    **dict.fromkeys(("ops", "types", "engines", "help"), ""),
    "examples": "new",
    "completion": "bash",
}
# Variants of a base: other inputs, by their suffix; `bare` is without the output.
FORMS = {"raw": ".bin", "table": ".parquet", "h5": ".h5", "grid": ".nc", "bare": ".npy"}
ORIGIN_COUNTS = ("--origin-count 3 {}", "--origin-count 3 --target-count 3 {}")
TARGET_COUNTS = ("--target-count 2 {}", "--origin-count 1 --target-count 2 {}")
# The arguments with an option, by its keyword. `{}` stands for the base, `{raw}` for a variant.
TRIED: dict[str, tuple[str, ...]] = {
    "op": tuple(f"--op {each} {{}}" for each in ("max", "MPI_PROD", "mean", "max,mean", "./ops.py:add", "nothing")),
    "type": ("--type double {}", "--type '<f8' {}", "--type int {}", "--type 'vector(' {}", "--type int64_t {raw}"),
    "types": ("--types types.toml --type rec {}", "--types missing.toml {}", "--types types.toml --type num {raw}"),
    "byte_order": tuple(f"--byte-order {each}" for each in ("little {}", "big {}", "native {}", "big {raw}")),
    "datarep": ("--datarep external32 {}", "--datarep native {}", "--datarep external32 {raw}"),
    "offset": ("--offset 8 {}", "--offset 1K {}", "--offset -1 {}", "--offset 16 {raw}"),
    "count": ("--count 3 {}", "--count 0 {}", "--count x {}", "--count 4 {raw}"),
    "format": ("--from npy {}", "--from raw --type double {}", "--from parquet {}", "--from raw {raw}"),
    "columns": ("--columns v {}", "--columns '*' {}", "--columns v {table}"),
    "pair": ("--pair v,n {}", "--pair v,n {table}", "--pair v,n {table} --op maxloc"),
    "keep": ("--keep n {}", "--keep n {table} -o 'keep_{rank}.parquet'"),
    "unpack": ("--unpack {}", "--unpack {grid}"),
    "nan": ("--nan ignore {}", "--nan mpi {}", "--nan propagate {}"),
    "nulls": ("--nulls ignore {}", "--nulls propagate {}"),
    "missing": ("--missing 2 {}", "--missing x {}"),
    "overflow": ("--overflow error {}", "--overflow wrap {}"),
    "accumulate_in": tuple(f"--accumulate-in {each}" for each in ("longdouble {}", "int64_t {}", "double {} i1.npy")),
    "result_type": ("--result-type float {}", "--result-type int {}"),
    "exact": ("--exact {}",),
    "ddof": ("{} --op var --ddof 1", "--ddof 1 {}"),
    "weights": ("{} --op mean --weights 1,3", "--weights 1,2 {}"),
    "weights_from": ("{} --op mean --weights-from weights.txt", "--weights-from missing {}"),
    "index": ("{} --op maxloc --index rank", "{} --op minloc --index number", "{} --op maxloc --index global"),
    "index_type": ("{} --op maxloc --index rank --index-type int64_t", "--index-type int {}"),
    "commute": ("{} --op ./ops.py:add --commute", "{} --op ./ops.py:add --no-commute"),
    "op_timeout": ("{} --op ./ops.py:add --op-timeout 20", "{} --op-timeout 0"),
    "files_from": ("--files-from list.txt {}", "--files-from missing.txt {}"),
    "null": ("--files-from list0.txt -0 {}",),
    "sort": tuple(f"--sort {each} {{}}" for each in ("given", "natural", "name")),
    "rank_regex": ("--rank-regex 'd(\\d)' {}", "--rank-regex '(' {}", "--rank-regex '[dz](\\d?)' {bare}"),
    "expect_ranks": ("--expect-ranks 0-1 {}", "--expect-ranks 0-5 {}", "--expect-ranks 0 {bare}"),
    "rank_numbers": ("--ranks 0-1 d%d.npy {}", "{bare} --ranks 0-1"),
    "stride": ("--stride 96 --type double {}", "--stride 40 --count 5 {raw}"),
    "ranks_in_file": ("--ranks-in-file 2 --type double {}", "--ranks-in-file 2 {raw}"),
    "skip_bad": ("--skip-bad {} cut.npy", "-k {}"),
    "min_inputs": ("--min-inputs 2 {}", "--min-inputs 9 {}"),
    "to": tuple(f"--to {each} {{}}" for each in ("raw", "csv", "json", "text", "table", "parquet", "nothing")),
    "output": ("{} -o new.bin", "{} -o d0.npy", "{} -o /nowhere/x.npy", "{bare} -o 'new_{rank}.bin'"),
    "overwrite": ("-f {}", "-f {bare} -o 'r{rank}.bin' --to raw", "-f --png new.png {}"),
    "force": ("-f {}", "-f {bare} -o 'r{rank}.bin' --to raw", "-f --discard {}"),
    "level": ("{} --level 3", "{} -o out.npy.gz --level 3", "{bare} -o 'out_{rank}.npy.gz' --level 3"),
    "split": (
        "{} --op maxloc --index rank --split v.npy,i.npy",
        "--split v.npy,i.npy {}",
        "{bare} --op maxloc --index rank --split 'v_{rank}.npy,i_{rank}.npy'",
    ),
    "root": ("--root 1 {}", "--root 7 {}"),
    "in_place": ("--in-place {}", "--in-place {bare}"),
    "count_valid": ("--count-valid valid.npy {}", "--count-valid 'valid_{rank}.npy' {}"),
    "group_b": ("{} --group-b d2.npy d1.npy", "{bare} --group-b d2.npy d1.npy --op sum -o 'out_{rank}.npy'"),
    "link": ("--link {}",),
    "counts": ("--counts 2,8 {}", "--counts 1,2 {}"),
    "counts_b": ("{} --counts-b 5,5",),
    "exscan_first": ("--exscan-first identity {}",),
    "header": ("--header copy {}", "--header copy {raw} -o 'copy_{rank}.bin'"),
    "provenance": ("--provenance {}",),
    "check_coordinates": ("--no-check-coordinates {}", "--check-coordinates {}", "--no-check-coordinates {grid}"),
    "ignore_coordinates": ("--ignore-coordinates x {}", "--ignore-coordinates 'x*' {grid}"),
    "coordinate_rtol": ("--coordinate-rtol 1e-6 {}", "--coordinate-rtol 0.1 {grid}"),
    "diff": ("--diff d1.npy {}", "--diff m1.npy m0.npy --png map.png", "--diff i0.npy {} --png map.png"),
    "follow_links": ("--follow-links {}", "--follow-links --columns v {h5}"),
    "max_open_files": ("--max-open-files 30 {}", "-n 1 {}", "-n 30 {}"),
    "max_memory": ("--max-memory 200M {}", "--max-memory 1K {}"),
    "jobs": ("-j 1 {}", "-j 2 {}", "-j x {}"),
    "engine": ("--engine local {}", "--engine mpi {}", "--engine nothing {}"),
    "scheduler": ("--scheduler tcp://127.0.0.1:1 {}",),
    "engine_timeout": ("--engine-timeout 1 {}", "--engine-timeout 0 {}", "--engine-timeout 5 {}"),
    "spread": tuple(f"--spread {each} {{}}" for each in ("auto", "elements", "ranks")),
    "lock_timeout": ("--lock-timeout 0 {}", "--lock-timeout x {}", "--lock-timeout 5 {}"),
    "quiet": ("-q {}",),
    "as_json": ("--json {}",),
    "dry_run": ("--dry-run {}", "--dry-run --json {}"),
    "verbose": ("-v {}",),
    "windows": ("--window d2.npy --window d1.npy --target-rank 1 {}", "--window d2.npy {}"),
    "target_rank": ("--window d2.npy --window d1.npy --target-rank 0 {}", "--target-rank 0 {}"),
    "target_disp": ("--target-disp 3 {}", "--target-disp 99 {}"),
    "disp_unit": (
        "--target-disp 8 --disp-unit 1 {}",
        "--disp-unit 1 --target-disp 16 {}",
        "--target-disp 1 --disp-unit 8 --target-count 2 --origin-count 2 {}",
    ),
    "at": ("--at 2 {}", "--at 0:4 {}", "--at x {}"),
    "target_count": ("--target-count 2 {}", "--target-count 3 --origin-count 3 {}"),
    "target_type": tuple(f"--target-type 'vector(2,1,2,double)' {each}{{}}" for each in ("", "--origin-count 2 ")),
    "map": ("--map map.npy {}", "--map missing.npy {}"),
    "origin_disp": tuple(f"--origin-disp 2 {each}" for each in ("{}", *ORIGIN_COUNTS)),
    "origin_count": ("--origin-count 4 {}", "--origin-count 4 --target-count 4 {}"),
    "origin_type": tuple(f"--origin-type 'vector(2,1,2,double)' {each}" for each in TARGET_COUNTS),
    "commit": tuple(f"--commit {each} {{}}" for each in ("auto", "rename", "journal")),
    "durability": tuple(f"--durability {each} {{}}" for each in ("full", "process", "none")),
    "create": ("--create 10 {}", "--create {}", "--create 2,5 {}"),
    "once": ("--once {}",),
    "once_key": ("--once-key KEY {}",),
    "fetch": ("{} --fetch other.npy", "{} --fetch -"),
    "into": ("{} --into both.bin",),
    "ulp": ("--ulp 2 {}",),
    "rtol": ("--rtol 1 {}", "--rtol x {}"),
    "atol": ("--atol 1e9 {}",),
    "nan_equal": ("--nan-equal --rtol 1 {}",),
    "examples": ("--examples 2 {}", "--examples 0 {}"),
    "top": ("--top 3 {}", "--top 0 {}"),
    "slice": ("--slice 2:4 {}", "--slice x {}"),
    "histogram": ("--histogram {}",),
    "bins": ("--histogram --bins 3 {}",),
    "png": ("--png picture.png {}", "--png picture.jpg {}"),
    "only_list": ("--list {}",),
    "discard": ("--discard {}",),
    "adopt": ("--adopt {}",),
    "matrix": ("--matrix {}",),
    "value_index": ("--value-index double uint64_t",),
}


def given(words: str, base: str) -> str:
    """Insert a base, or a variant of it, into the arguments with an option."""
    bare = re.sub(r" -o \S+", "", base)
    for form, suffix in FORMS.items():
        files = re.sub(r"\b([dz]\d?)\.(?:npy|parquet)", rf"\1{suffix}", bare if form == "bare" else base)
        more = "" if form != "raw" else " --type int" if base.startswith("z") else " --type double"
        words = words.replace(f"{{{form}}}", files + more)
    return words.replace("{}", base)


def with_options() -> Iterator[str]:
    """Yield each option, in each spelling, with each command that has it."""
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        base = BASES[name]
        yield f"mpired {name} {base}"
        yield f"mpired {name} --help"
        yield f"mpired {name} -h"
        yield f"mpired {name}"
        yield f"mpired {name} --no-such-option {base}"
        for parameter in command.params if command else ():
            tried = [given(words, base) for words in TRIED.get(parameter.name, ())]
            found = {word for words in tried for word in words.split()} & set(parameter.opts)
            others = set(parameter.opts) - found if found else ()
            for one, other in itertools.product(sorted(found), sorted(others)):
                tried += [new for words in tried if (new := re.sub(rf"(?<!\S){one}(?!\S)", other, words)) != words]
            yield from (f"mpired {name} {words}" for words in tried)


def missing_pairs(there: list[str]) -> list[str]:
    """Return the pairs of a command and a spelling of one of its options that no case has."""
    run: dict[str, set[str]] = {}
    for case in there:
        for words in re.findall(r"mpired ([a-z-]+)((?:'[^']*'|[^|;&\n])*)", case):
            run.setdefault(words[0], set()).update(re.findall(r"(?<!\S)--?[\w-]+", words[1]))
    return [
        f"{name} {flag}"
        for name in cli.list_commands(click.Context(cli))
        for parameter in getattr(cli.get_command(click.Context(cli), name), "params", ())
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("-") and flag not in run.get(name, ())
    ]
