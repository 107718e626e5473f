# Prints docs/ops.md, with the tables as the program prints them; `make docs` writes it.
set -eu

show() {
    printf '```console\n$ %s\n' "$1"
    $1
    printf '```\n'
}

cat <<'END'
# Ops and datatypes

Written by `make docs`; do not edit. A test compares this page with what the program prints.

## Ops

Each row is an op, each mark a group of datatypes that it takes. Every other combination is an
error (exit status 3, MPI_ERR_OP) that lists the datatypes the op takes and the ops the datatype
takes. `replace` and `no_op` are for windows; no reduction takes them.

END
show 'mpired ops'
echo
show 'mpired ops --matrix'
cat <<'END'

Some kernels are compiled from C when mpired is installed, if there is a C compiler: those for which NumPy goes through
the elements several times, or one by one. `mpired ops --json` lists for which datatypes. All others are those of NumPy,
and so are all without a compiler, for blocks of less than 4 KiB, and with the environment variable `MPIRED_NATIVE=0`.
No bit of a result depends on it.

## Datatypes

The size counts the bytes of the components; the extent includes the padding. In raw files an element
takes its extent. Datatypes without a NumPy form are listed as not available, and refused.

END
show 'mpired types'
