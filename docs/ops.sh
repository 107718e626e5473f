# Prints docs/ops.md, with the tables as the program prints them; `make docs` writes it.
set -eu

show() {
    printf '```console\n$ %s\n' "$1"
    $1
    printf '```\n'
}

cat <<'END'
# Ops and datatypes

Written by `make docs`; do not edit. A test fails when it is not what the program prints.

## Ops

Each row is an op, each mark a group of datatypes that it takes. Every other combination is an
error (exit status 3, MPI_ERR_OP) that says which datatypes the op takes and which ops the datatype
takes. `replace` and `no_op` are in the table of MPI, but no reduction takes them.

END
show 'mpired ops'
cat <<'END'

## Datatypes

The size counts the bytes of the components, the extent the padding too. In raw files an element
takes its extent. Types without a NumPy form are known by name and refused.

END
show 'mpired types'
