"""The examples of docs/user-ops.md."""

import ast
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from needs import needs
from user_ops import folded, in_child, saved

import mpired
from mpired.errors import UserOpError

EXAMPLES = Path(__file__).parents[2] / "examples" / "ops.py"


def test_a_subroutine_in_fortran_is_an_op(tmp_path):
    """Compared with NumPy, whose complex product may round its sums otherwise."""
    needs("gfortran")
    library = tmp_path / "ops.so"
    source = EXAMPLES.with_name("complex_product.f90")
    flags = ("-O2", "-ffp-contract=off", "-shared", "-fPIC")
    subprocess.run(["gfortran", *flags, "-o", library, source], check=True)
    arrays = list(np.random.default_rng(5).normal(size=(5, 1000, 2)).view("c16")[..., 0])
    result = in_child(lambda: mpired.reduce(saved(tmp_path, arrays), f"{library}:complex_product").tolist().__repr__())
    expected = np.prod(arrays, axis=0)
    np.testing.assert_allclose(np.array(ast.literal_eval(result)), expected, rtol=1e-13)


def test_one_op_for_several_datatypes(tmp_path):
    tables = [
        pa.table({"energy": [1.5 * rank, 1.0], "cell": pa.array([rank, -rank], pa.int32()), "hits": [rank, 5]})
        for rank in range(3)
    ]
    paths = [tmp_path / f"rank{rank}.parquet" for rank in range(3)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    place = f"{EXAMPLES}:sum_or_max"
    result = in_child(lambda: {name: array.tolist() for name, array in mpired.reduce(paths, place).items()})
    assert result == {"energy": [4.5, 3.0], "cell": [2, 0], "hits": [2, 5]}


def test_an_op_for_several_datatypes_refuses_another(tmp_path):
    def refused():
        with pytest.raises(UserOpError) as e:
            mpired.reduce(saved(tmp_path, [np.ones(2, np.float32)] * 2), f"{EXAMPLES}:sum_or_max")
        return e.value.reason

    assert in_child(refused) == "aborted: sum_or_max takes no MPI_FLOAT"


def test_matrix_product(tmp_path):
    draw = np.random.default_rng(6)
    matrices = draw.integers(-4, 5, size=(7, 30, 2, 2)).astype("f8")
    form = np.dtype([(row + column, "f8") for row in "xy" for column in "xy"])
    paths = saved(tmp_path, [matrix.reshape(30, 4).view(form)[:, 0] for matrix in matrices])
    result = in_child(lambda: mpired.reduce(paths, f"{EXAMPLES}:matrix_product", jobs=2).tobytes())
    product = folded(np.matmul, list(matrices))
    assert result == product.tobytes()
    assert result != folded(np.matmul, list(matrices[::-1])).tobytes()
