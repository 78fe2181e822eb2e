"""The reward `tests`: Python code that a model has written, judged by a program of tests that it never sees.

- `program`: what a program of tests asks of an answer, and which programs cannot ask
- `plain_data`, `answer_side`, `tests_side`: what runs in the two sandboxes, the answer's and that of the tests
- `grader`: carries their lines to and fro
"""
