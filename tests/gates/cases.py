"""The commands of the transcripts: options, formats, ops, refusals, and the examples of the pages."""

import doctest
import itertools
import re
from collections.abc import Iterator

import click
from files_of_cases import FORMATS, ROOT
from option_cases import with_options

from mpired.cli import cli
from mpired.datatypes import DATATYPES
from mpired.ops import OPS, STATISTICS

BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"^\|.*\| `((?:[^`]* )?mpired [^`]+)` \|$", re.MULTILINE)

NAMING = """python -c "
import netCDF4
with netCDF4.Dataset('t.nc', 'w', format='NETCDF3_CLASSIC') as file:
    file.createDimension('x', 2)
    for name in ('t', 'err'):
        file.createVariable(name, 'f4', ('x',))[:] = 1, 2
    file['t'].ancillary_variables = 'err'
"
"""
BESIDE = """mpired reduce --op first --columns v d0.zarr -o a.zarr.zip
python -c "import zipfile; zipfile.ZipFile('a.zarr.zip', 'a').writestr('README', 'x')"
"""
NAMES = "python -c \"import zipfile; print(zipfile.ZipFile('a.zarr.zip').namelist())\""
SHIFTED = """cp d1.nc a.nc
python -c "import netCDF4; netCDF4.Dataset('a.nc', 'a')['x'][:] = 9"
"""
GCC = "gcc -shared -fPIC -xc -o f.so - <<< 'void abort(); void f() { abort(); }'"
DIFFERENCES = (
    *("null0.parquet null1.parquet", "--json null0.parquet null1.parquet", "t0.npy t1.npy", "packed0.nc packed1.nc"),
    *("f0.npy m0.npy --atol 1", "z.npy d0.npy --atol 9", "@list.txt @list.txt", "--json @list.txt @list.txt"),
    *("@list.txt d0.npy", "sample_data sample_data", "sample_data examples -q", "-q d0.npy d0.npy"),
    *("--png picture.png d0.nc d1.nc", "--png picture.png @list.txt @list.txt"),
    *("list.txt weights.txt", "list.txt list.txt", "list.txt d0.npy"),
)


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


def of_kept() -> Iterator[str]:
    """Yield arrays and columns that are carried, and checkpoints in shards."""
    mean = "mpired reduce --op mean --columns w --keep mask"
    for to in ("csv", "json", "text", "table"):
        yield f"mpired reduce --op max --columns v --keep key --nulls ignore null1.parquet null2.parquet --to {to}"
    places = ("-o new", "-o one.safetensors", "-o new --dry-run", "-o new/x.safetensors.index.json --json")
    for words in (*places, "--in-place"):
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
    yield "mpired reduce --op max,min --columns w checkpoint0 checkpoint1 -o '{op}.safetensors.index.json'"
    shards = "cp checkpoint0/model-1-of-2.safetensors one/m-00001-of-00002.safetensors && "
    for more in ("", "cp checkpoint0/model-2-of-2.safetensors one/m-00002-of-00002.safetensors && "):
        yield f"mkdir one && {shards}{more}{mean} one one -o new"


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
        for rule in ("ignore", "propagate"):
            yield f"mpired accumulate --op {name} --nulls {rule} --columns v null0.parquet null1.parquet null2.parquet"
    for rule in ("--nulls ignore", "--nulls propagate", "--nulls ignore --missing 3", "--nulls ignore --nan ignore"):
        yield f"mpired locate --op maxloc {rule} --columns v null[0-2].parquet"
        yield f"mpired get-accumulate --op sum {rule} --columns v null0.parquet null1.parquet --to text"
        yield f"mpired reduce --op maxloc --index rank --unpack {rule} packed[0-2].nc -o out.nc"
        yield f"mpired reduce --op maxloc --index rank {rule} --columns v null[0-2].parquet -o out.h5"
        yield f"mpired reduce --op sum --in-place --keep key {rule} null[0-2].parquet"
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
    bad = "missing.npy cut.npy noise.parquet empty sample_data /dev/null d0.bin list.txt s3://"
    for name, file in itertools.product(("reduce --op sum", "info", "show", "diff d0.npy", "locate --op maxloc",
                                         "accumulate --op sum d0.npy", "accumulate --op sum d0.npy d1.npy",
                                         "scan --op sum d0.npy -o 'x{rank}.npy'", "recover"), bad.split()):  # fmt: skip
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
        "mpired reduce --op sum --accumulate-in int64_t sample_data/flags_[0-2].npy --to text",
        "mpired reduce --op sum,land --accumulate-in int64_t sample_data/flags_[0-2].npy -o '{op}.npy'",
        "mpired reduce --op mean,maxloc d0.npy i0.npy -o out.npz",
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
        "mpired locate --op maxloc i0.npy m0.npy",
        "mpired reduce-local --op sum --nulls ignore null0.parquet null1.parquet",
        f"{GCC}\nmpired reduce --op ./f.so:f d0.npy d1.npy",
        *(f"mpired diff {words}" for words in DIFFERENCES),
        "mpired reduce --op sum packed0.nc packed1.nc -o out.nc",
        "mpired reduce --op sum --unpack packed0.nc packed1.nc -o out.nc",
        "mpired reduce --op mean --unpack --nulls ignore packed[0-2].nc -o out.nc",
        f"{NAMING}mpired reduce --op mean,std t.nc t.nc -o out.nc",
        f"{NAMING}mpired reduce --op mean --columns t t.nc t.nc -o out.nc",
        f"{BESIDE}mpired reduce --op sum --columns v a.zarr.zip d1.zarr --in-place\n{NAMES}",
        f"{BESIDE}mpired accumulate --op sum --columns v a.zarr.zip d1.zarr\n{NAMES}",
        f"{SHIFTED}mpired show d0.nc --diff a.nc --png x.png",
        f"{SHIFTED}mpired reduce --op sum d0.nc a.nc -o out.nc",
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


def cases() -> list[str]:
    """Return all commands, each once."""
    parts = with_options, of_formats, of_kept, of_ops, of_refusals, of_statuses, of_pages
    return list(dict.fromkeys(itertools.chain.from_iterable(part() for part in parts)))
