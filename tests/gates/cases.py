"""The commands of the transcripts: options, formats, ops, refusals, and the examples of the pages."""

from __future__ import annotations

import doctest
import itertools
import re
from collections.abc import Iterator

import click
from files_of_cases import FORMATS, ROOT

from mpired.cli import cli
from mpired.datatypes import DATATYPES
from mpired.ops import OPS, STATISTICS

BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"^\|.*\| `((?:[^`]* )?mpired [^`]+)` \|$", re.MULTILINE)

# The arguments of each command, to which the cases of options add an option.
BASES = {
    "reduce": "--op sum d0.npy d1.npy -o out.npy",
    "allreduce": "--op sum d0.npy d1.npy -o out_{rank}.npy",
    "scan": "--op sum d0.npy d1.npy -o out_{rank}.npy",
    "exscan": "--op sum d0.npy d1.npy -o out_{rank}.npy",
    "reduce-scatter": "--op sum d0.npy d1.npy --counts 4,6 -o out_{rank}.npy",
    "reduce-scatter-block": "--op sum d0.npy d1.npy -o out_{rank}.npy",
    "reduce-local": "--op sum d0.npy d1.npy",
    "accumulate": "--op sum d0.npy d1.npy",
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
    "ops": "",
    "types": "",
    "engines": "",
    "help": "",
    "examples": "new",
    "completion": "bash",
}
# Variants of a base: other inputs, by their suffix; `bare` is without the output.
FORMS = {"raw": ".bin", "table": ".parquet", "h5": ".h5", "grid": ".nc", "bare": ".npy"}
# The arguments with an option, by its keyword. `{}` stands for the base, `{raw}` for a variant.
TRIED: dict[str, tuple[str, ...]] = {
    "op": tuple(f"--op {each} {{}}" for each in ("max", "MPI_PROD", "mean", "max,mean", "./ops.py:add", "nothing")),
    "type": ("--type double {}", "--type '<f8' {}", "--type int {}", "--type 'vector(' {}", "--type int64_t {raw}"),
    "types": ("--types types.toml --type rec {}", "--types missing.toml {}", "--types types.toml --type num {raw}"),
    "byte_order": (
        *tuple(f"--byte-order {each} {{}}" for each in ("little", "big", "native")),
        "--byte-order big {raw}",
    ),
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
    "accumulate_in": ("--accumulate-in longdouble {}", "--accumulate-in int64_t {}"),
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
    "target_type": (
        "--target-type 'vector(2,1,2,double)' {}",
        "--target-type 'vector(2,1,2,double)' --origin-count 2 {}",
    ),
    "map": ("--map map.npy {}", "--map missing.npy {}"),
    "origin_disp": (
        "--origin-disp 2 {}",
        "--origin-disp 2 --origin-count 3 {}",
        "--origin-disp 2 --origin-count 3 --target-count 3 {}",
    ),
    "origin_count": ("--origin-count 4 {}", "--origin-count 4 --target-count 4 {}"),
    "origin_type": (
        "--origin-type 'vector(2,1,2,double)' --target-count 2 {}",
        "--origin-type 'vector(2,1,2,double)' --origin-count 1 --target-count 2 {}",
    ),
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


def of_formats() -> Iterator[str]:
    """Yield commands on files of each format, and with each format of results."""
    ops = ("sum", "max", "mean", "maxloc --index rank")
    for form, op in itertools.product(FORMATS, ops):
        given = " --type double" if form == "bin" else ""
        names = f"d0.{form} d1.{form} d2.{form}"
        yield f"mpired reduce --op {op}{given} {names} -o out.{form}"
        yield f"mpired scan --op {op}{given} {names} -o 'out_{{rank}}.{form}'"
    for form in FORMATS:
        given = " --type double" if form == "bin" else ""
        for words in (
            f"accumulate --op sum{given} d0.{form} d1.{form}",
            f"accumulate --op sum{given} --once d0.{form} d1.{form} d1.{form}",
            f"accumulate --op max{given} --commit journal d0.{form} d1.{form}",
            f"get-accumulate --op sum{given} d0.{form} d1.{form} --fetch old.npy",
            f"reduce-local --op sum{given} d0.{form} d1.{form}",
            f"reduce --op sum{given} d0.{form} d1.{form} --in-place",
            f"info{given} d0.{form}",
            f"info --json{given} d0.{form}",
            f"show{given} d0.{form}",
            f"diff{given} d0.{form} d1.{form}",
            f"diff{given} d0.{form} d0.{form}",
            f"locate --op maxloc{given} d0.{form} d1.{form}",
            f"reduce --op sum{given} d0.{form} i1.{form} -o out.npy",
            f"reduce --op band{given} d0.{form} d1.{form} -o out.npy",
            f"reduce --op sum --keep n{given} d0.{form} d1.{form} -o out.{form}",
            f"reduce --op sum --columns v{given} d0.{form} d1.{form} -o out.{form}",
            f"reduce --op sum --columns nothing{given} d0.{form} d1.{form} -o out.{form}",
            f"reduce --op sum --json{given} d0.{form} d1.{form} -o out.npy",
            f"reduce --op sum --dry-run{given} d0.{form} d1.{form} -o out.npy",
            f"reduce --op count --count-valid valid.npy{given} d0.{form} d1.{form} -o out.npy",
        ):
            yield f"mpired {words}"
        for to in ("raw", "npy", "parquet", "arrow", "arrows", "npz", "safetensors", "hdf5", "netcdf", "zarr"):
            suffix = ".zip" if to == "zarr" else ""
            yield f"mpired reduce --op sum{given} d0.{form} d1.{form} --to {to} -o out.{to}{suffix}"
        for to in ("csv", "json", "text", "table"):
            yield f"mpired reduce --op sum{given} d0.{form} d1.{form} --to {to}"


def of_ops() -> Iterator[str]:
    """Yield each op on several datatypes, and with options for values."""
    names = [op.name.lower() for op in (*OPS, *STATISTICS)]
    for name in names:
        op = "quantile:0.25" if name == "quantile" else name
        for stem in ("d", "i", "f", "m", "t", "sample_data/flags_", "sample_data/waves_", "sample_data/maxloc_"):
            yield f"mpired reduce --op {op} {stem}[0-2].npy --to text"
        for rule in ("--nan ignore", "--nan mpi", "--missing 7", "--exact", "--accumulate-in longdouble"):
            yield f"mpired reduce --op {op} {rule} f[0-2].npy --to text"
        for rule in ("error", "ignore", "propagate"):
            yield f"mpired reduce --op {op} --nulls {rule} --columns v null[0-2].parquet --to csv"
    for name in ("sum", "prod", "max", "replace", "no_op"):
        yield f"mpired accumulate --op {name} i0.npy i1.npy"
        yield f"mpired fetch-and-op --op {name} i0.npy 3 --target-disp 2"
    for row in DATATYPES:
        yield f"mpired types {str(row).removeprefix('MPI_').lower()}"
        yield f"mpired reduce --op max --type {row!s} both.bin both.bin --to raw | od -An -tx1 | head -3"
    for text in ("vector(2,1,3,int)", "hvector(2,1,16,int)", "indexed([1,2],[0,3],int)", "struct([1],[0],[double])",
                 "subarray([4,4],[2,2],[1,1],C,int)", "resized(0,24,double)", "pair(double,int64_t)", "dup(int)",
                 "contiguous(3,short_int)", "indexed_block(2,[0,4],int)", "hindexed([1,1],[0,9],byte)"):  # fmt: skip
        yield f"mpired types '{text}'"
        yield f"mpired pack --type '{text}' records.bin --count 1 --to raw | od -An -tx1"


def of_refusals() -> Iterator[str]:
    """Yield wrong arguments and bad files."""
    bad = (
        "missing.npy",
        "cut.npy",
        "noise.parquet",
        "empty",
        "sample_data",
        "/dev/null",
        "d0.bin",
        "list.txt",
        "s3://",
    )
    for name, file in itertools.product(("reduce --op sum", "info", "show", "diff d0.npy", "locate --op maxloc",
                                         "accumulate --op sum d0.npy", "accumulate --op sum d0.npy d1.npy",
                                         "scan --op sum d0.npy -o 'x{rank}.npy'", "recover"), bad):  # fmt: skip
        yield f"mpired {name} {file}"
    yield from (
        "mpired",
        "mpired --version",
        "mpired --help",
        "mpired nothing",
        "mpired sum d0.npy",
        "mpired compare d0.npy d1.npy",
        "mpired reduce --op sum",
        "mpired reduce sum d0.npy",
        "mpired reduce --op sum d0.npy d0.npy --threads 4",
        "mpired reduce --op sum d0.npy i0.npy",
        "mpired reduce --op sum d0.npy m0.npy",
        "mpired reduce --op ./ops.py:fails d0.npy d1.npy",
        "mpired reduce --op ./ops.py:nothing d0.npy d1.npy",
        "mpired reduce --op ./nothing.so:f d0.npy d1.npy",
        "mpired reduce --op np.add d0.npy d1.npy",
        "mpired reduce --op mean,max,std --ddof 1 d[0-2].npy -o out.npz",
        "mpired reduce --op max,./ops.py:add,maxloc --index rank d[0-2].npy --to csv",
        "mpired reduce --op max,maxloc --index rank d[0-2].npy -o '{op}.npy'",
        "mpired reduce --op mean,count --nulls ignore null[0-2].parquet --columns v -o out.parquet",
        "mpired reduce --op mean,max --unpack --nulls ignore packed[0-2].nc -o out.nc",
        "mpired reduce --op mean,max --json d0.h5 d1.h5 -o out.h5",
        "mpired reduce --op max,min --weights 1,2 d0.npy d1.npy -o out.npz",
        "mpired locate --op maxloc,minloc --json d[0-2].npy",
        (
            "gcc -shared -fPIC -xc -o f.so - <<< 'void abort(); void f() { abort(); }'\n"
            "mpired reduce --op ./f.so:f d0.npy d1.npy"
        ),
        "mpired reduce --op sum packed0.nc packed1.nc -o out.nc",
        "mpired reduce --op sum --unpack packed0.nc packed1.nc -o out.nc",
        "mpired reduce --op mean --unpack --nulls ignore packed[0-2].nc -o out.nc",
        "mpired reduce --op sum 'd*.npy' --to text",
        "mpired reduce --op sum 'd{0..2}.npy' --to text",
        "mpired reduce --op sum @list.txt --to text",
        "echo @list.txt > lists.txt; mpired reduce --op sum @lists.txt --to text",
        "mpired reduce --op sum 'nothing*.npy'",
        "mpired reduce --op sum d0.npy.gz d1.npy.gz -o out.npy.gz",
        "mpired reduce --op sum - d1.npy --to text < d0.npy",
        "mpired reduce --op sum <(cat d0.npy) <(cat d1.npy) --to text",
        "mpired reduce --op sum d0.npy d1.npy --to npy | mpired reduce --op max - d2.npy --to text",
        "mpired reduce --op sum d0.npy d1.npy --to npy | head -c 0",
        "mpired reduce --op sum d0.npy d1.npy > /dev/full",
        "mpired reduce --op sum d0.npy d1.npy -o out.npy && mpired reduce --op sum d0.npy d1.npy -o out.npy",
        "for _ in 1 2; do mpired accumulate --op sum --once-key k d0.npy d1.npy; done",
        "mpired accumulate --op sum --create 10 new.npy d1.npy d2.npy && mpired show new.npy",
        "mpired reduce --op sum --type '>i2' --offset 8 r[0-2].bin --to text",
        "mpired reduce --op sum --type '>i2' --offset 8 --header copy r[0-2].bin -o out.bin",
        "mpired reduce --op sum --type double --ranks-in-file 2 both.bin --to text",
        "mpired reduce --op sum --type double --stride 96 --count 2 both.bin --to text",
        "mpired completion zsh",
        "mpired completion fish",
        "mpired help statuses",
        "mpired help reduce",
        "MPIRED_OP=sum mpired reduce d0.npy",
        "MPIRED_JOBS=1 MPIRED_TO=text mpired reduce --op sum d0.npy d1.npy",
        "MPIRED_JOBS=x mpired reduce --op sum d0.npy d1.npy",
    )


def of_statuses() -> Iterator[str]:
    """Yield a command for each exit status, with the status at its end."""
    sums = "--op sum d0.npy d1.npy"
    ended = {"dies": 8, "hangs_up": 129, "interrupts": 130, "terminates": 143, "fails": 7}
    for command, status in {
        "mpired diff d0.npy d0.npy": 0,
        "mpired diff d0.npy d1.npy": 1,
        f"python failing.py bug reduce {sums} -o out.npy 2>&1 | tail -n 1": 1,
        "python failing.py bug diff d0.npy d1.npy 2>&1 | tail -n 1": 70,
        f"mpired reduce {sums} --threads 4": 2,
        "mpired reduce --op sum d0.npy cut.npy": 3,
        f"mpired reduce {sums} --to raw > /dev/full": 4,
        f"python locked.py d0.npy mpired accumulate --lock-timeout 0 {sums}": 5,
        f"python locked.py d0.npy mpired reduce --lock-timeout 0 {sums} --in-place": 5,
        f"python failing.py disk reduce {sums} -o out.npy": 6,
        f"python failing.py disk accumulate {sums}": 6,
        "python failing.py disk scan --op sum d0.npy d1.npy -o 'out_{rank}.npy'": 6,
        "mpired reduce --op ./ops.py:waits --op-timeout 0.1 d0.npy d1.npy": 7,
        "mpired reduce --op sum --skip-bad d0.npy d1.npy cut.npy -o out.npy": 9,
        f"exec 3> >(true); wait $!; mpired reduce {sums} --to text >&3": 141,
        **{f"mpired reduce --op ./ops.py:{op} d0.npy d1.npy -o out.npy": each for op, each in ended.items()},
        **{f"mpired scan --op ./ops.py:{op} --in-place d0.npy d1.npy": each for op, each in ended.items()},
    }.items():
        yield f"{command}  # {status}"


def typed(page: str) -> str:
    """Return the commands of a page as one session. Its Python examples only make files."""
    lines: list[str] = []
    for kind, block in BLOCK.findall(page):
        if kind == "console":
            lines += [line[2:] for line in block.splitlines() if line.startswith(("$ ", "> "))]
        else:
            source = "".join(example.source for example in doctest.DocTestParser().get_examples(block))
            lines.append(f"python > /dev/null 2>&1 <<'END'\nimport mpired, numpy as np\n{source}END")
    return "\n".join(lines) if "mpired " in "".join(lines) else ""


def of_pages() -> Iterator[str]:
    """Yield the examples of each page and of each help, as one session each."""
    for page in sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("sample_data/*.md"))):
        text = page.read_text()
        if typed(text):
            yield typed(text)
        if of_tables := CELL.findall(text):
            yield "\n".join(["cd sample_data", *of_tables])
    for name in cli.list_commands(click.Context(cli)):
        yield "\n".join(examples_of_help(name))


def examples_of_help(name: str) -> list[str]:
    """Return the examples in the help of a command."""
    command = cli.get_command(click.Context(cli), name)
    text = command.get_help(click.Context(command, info_name=name)) if command else ""
    shown = text.partition("Examples:")[2].partition("\n\n")[0].replace("\\\n", "")
    return re.findall(r"^ +(mpired .*)$", shown, re.MULTILINE)


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


def cases() -> list[str]:
    """Return all commands, each once."""
    return list(dict.fromkeys([*with_options(), *of_formats(), *of_ops(), *of_refusals(), *of_statuses(), *of_pages()]))
