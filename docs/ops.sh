# Prints docs/ops.md, with the tables as the program prints them; `make docs` writes it.
set -eu

show() {
    printf '```console\n$ %s\n' "$1"
    $1
    printf '```\n'
}

cat <<'END'
# Ops and datatypes

Written by `make docs` from the output of the program; do not edit.

## Ops

Each row is an op, each mark a group of datatypes that the op takes. Every other combination is an error (exit status 3,
MPI_ERR_OP) that lists the datatypes of the op and the ops of the datatype. `replace` and `no_op` are for windows;
reductions refuse them.

END
show 'mpired ops'
echo
show 'mpired ops --matrix'
cat <<'END'

If there is a C compiler at the installation, some kernels are compiled from C: those for which NumPy reads the elements
several times, or one by one. `mpired ops --json` lists their datatypes. All other kernels are those of NumPy. NumPy's
kernels are also used without a compiler, for blocks of less than 4 KiB, and with the environment variable
`MPIRED_NATIVE=0`. The bits of a result are the same with both.

## Datatypes

The size counts the bytes of the components; the extent includes the padding. In raw files an element occupies its
extent. Datatypes without a NumPy form are listed as not available, and refused.

END
show 'mpired types'
