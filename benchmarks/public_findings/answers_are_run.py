"""Nine tasks of reasoning-gym 0.1.25 run the answer as Python: `eval`, or `sympy.parse_expr`, which uses it."""

import contextlib
import pathlib
import tempfile

import reasoning_gym

NAMES = "binary_matrix spiral_matrix string_insertion n_queens countdown puzzle24 polynomial_multiplication"
for name in f"{NAMES} simple_integration intermediate_integration".split():
    data, place = reasoning_gym.create_dataset(name, seed=0, size=1), pathlib.Path(tempfile.mkdtemp(), name)
    with contextlib.suppress(Exception):
        data.score_answer(f"__import__('os').mkdir('{place}')", data[0])
    assert place.exists(), name
