# just setup, check, test, e2e, docs. `.ci/run` does what CI does, in an environment of its own.
python := env("PYTHON", "python")

# Install turnsmith for development into the active virtual environment (no GPU).
setup:
    {{python}} -m pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    {{python}} -m pip install --no-deps -r locks/dev.txt
    {{python}} -m pip install --no-deps -e .

# After a change of dependencies in pyproject.toml: write the locks anew. `just lock --upgrade` takes newer versions.
lock *args:
    {{python}} locks/lock.py {{args}}
    {{python}} locks/licences.py

# Lint, format, types and import contracts.
check:
    ruff check .
    ruff format --check .
    basedpyright
    lint-imports

# Unit tests and the examples in docstrings; 2 to 6 minutes on two cores.
test *args:
    {{python}} -m pytest -n 3 --dist worksteal -m 'not e2e and not nightly' {{args}}

# Train with the real engine; minutes.
e2e *args:
    {{python}} -m pytest -v tests/e2e -m e2e {{args}}

# Serve the documentation while you write it.
docs:
    {{python}} -m zensical serve
