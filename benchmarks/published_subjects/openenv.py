"""meta-pytorch/OpenEnv: the environments of its servers, without a connection between them and their clients."""

from __future__ import annotations

import ast
import json
import operator
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # where the sources have their package


class Carla(BaseEnvironment):
    """A drive to a place, with the simulated physics, as the project's client sees it."""

    def __init__(self, config: Any = None) -> None:
        from carla_env.client import CarlaEnv
        from carla_env.server.carla_environment import CarlaEnvironment

        super().__init__(config)
        self.server = CarlaEnvironment(scenario_name="free_roam_Town05", mode="mock")
        self.client = CarlaEnv()

    def reset(self) -> str:
        result = self._result(self.server.reset())
        return f"{result.observation.scene_description}\n\n{self._shown(result.observation)}"

    def get_prompt_prefix(self) -> str:
        return (
            'Each turn is a JSON object of one action, such as {"action_type": "observe"}, {"action_type": "control", '
            '"throttle": 0.5, "steer": 0.1}, {"action_type": "set_destination", "destination_x": 1.0, "destination_y": '
            '2.0} or {"action_type": "follow_route", "route_steps": 20}.'
        )

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        from carla_env.models import CarlaAction
        from openenv.core.env_server.serialization import deserialize_action
        from pydantic import ValidationError

        try:
            read = CarlaAction.model_validate_json(action)
        except ValidationError as error:
            return str(error), 0.0, False, {}
        sent = json.loads(json.dumps(self.client._step_payload(read)))
        result = self._result(self.server.step(deserialize_action(sent, CarlaAction)))
        return self._shown(result.observation), result.reward, result.done, {}

    def solve(self) -> list[str]:
        x, y, _ = self.server.scenario_data["goal_location"]
        steps = int(self.server._compute_goal_distance() / (30 / 3.6 * self.server.mock_state["delta_time"]))
        return [
            json.dumps({"action_type": "set_destination", "destination_x": x, "destination_y": y}),
            json.dumps({"action_type": "follow_route", "route_steps": max(steps, 1)}),
        ]

    def _result(self, observation: Any) -> Any:
        """What the client makes of the message of the server."""
        from openenv.core.env_server.serialization import serialize_observation

        return self.client._parse_result(json.loads(json.dumps(serialize_observation(observation))))

    def _shown(self, observation: Any) -> str:
        names = ("location", "rotation", "speed_kmh", "goal_distance", "goal_direction", "step_number")
        goal = self.server.scenario_data["goal_location"]
        return json.dumps({name: getattr(observation, name) for name in names} | {"goal": goal})


class Coding(BaseEnvironment):
    """Python code that is run; the project rewards how it is written."""

    def reset(self) -> str:
        from coding_env.server.python_codeact_env import PythonCodeActEnv

        self.server = PythonCodeActEnv()
        self.server.reset()
        return "Each turn is Python code, which is run. Print the first ten square numbers."

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, Any]]:
        from coding_env.models import CodeAction

        seen = self.server.step(CodeAction(code=action))
        return f"{seen.stdout}{seen.stderr}", seen.reward, seen.done, {}

    def solve(self) -> str:
        return "print([number**2 for number in range(1, 11)])"


class Julia(BaseEnvironment):
    """A function in Julia that is tested; a stand-in runs the little of the language that the tasks need."""

    def reset(self, task: dict[str, Any]) -> str:
        from julia_env.server import julia_codeact_env

        julia_codeact_env.JuliaExecutor = LittleJulia
        self.task, self.server = task, julia_codeact_env.JuliaCodeActEnv()
        self.server.reset()
        return task["prompt"]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        from julia_env.models import JuliaAction

        seen = self.server.step(JuliaAction(core_code=action, test_code=self.task["test"]))
        return f"{seen.stdout}{seen.stderr}", seen.reward, True, {}

    def solve(self) -> str:
        return self.task["solution"]


class LittleJulia:
    """Runs functions of one expression and tests of them, and prints what Julia's `Test` would."""

    def __init__(self, **_: Any) -> None:
        self.functions: dict[str, tuple[list[str], ast.expr]] = {}

    def run(self, code: str, timeout: float | None = None) -> Any:
        core, _, tests = code.partition("using Test")
        try:
            self.functions = dict(_definitions(core))
        except SyntaxError as error:
            return SimpleNamespace(stdout="", stderr=f"ERROR: LoadError: syntax: {error.msg}\n", exit_code=1)
        counts = {"Pass": 0, "Fail": 0, "Error": 0}
        for test in re.findall(r"@test (.+)", tests):
            try:
                counts["Pass" if self._value(_expression(test), {}) is True else "Fail"] += 1
            except (ArithmeticError, KeyError, TypeError, ValueError):
                counts["Error"] += 1
        shown = {name: count for name, count in counts.items() if count} | {"Total": sum(counts.values())}
        lines = [
            f"Test Summary: | {'  '.join(shown)}  Time",
            f"tests         | {'  '.join(map(str, shown.values()))}  0.1s",
        ]
        wrong = "Some tests did not pass: {Pass} passed, {Fail} failed, {Error} errored, 0 broken.".format(**counts)
        is_right = counts["Pass"] == shown["Total"]
        stdout = "\n".join(lines if tests else []) + "\n"
        return SimpleNamespace(
            stdout=stdout, stderr="" if is_right else f"ERROR: LoadError: {wrong}\n", exit_code=int(not is_right)
        )

    def _value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name):
                return names[name]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._value(inner, names)
            case ast.BinOp(left=left, op=sign, right=right):
                return _SIGNS[type(sign)](self._value(left, names), self._value(right, names))
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                return _SIGNS[type(sign)](self._value(left, names), self._value(right, names))
            case ast.Call(func=ast.Name(id=name), args=given, keywords=[]):
                values = [self._value(one, names) for one in given]
                if name in _BUILT_IN:
                    return _BUILT_IN[name](*values)
                parameters, body = self.functions[name]
                return self._value(body, dict(zip(parameters, values, strict=True)))
        raise TypeError(f"cannot evaluate {type(node).__name__}")


_SIGNS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, power: base ** min(power, 64),
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
}
_BUILT_IN: dict[str, Any] = {"abs": abs, "max": max, "min": min, "div": operator.floordiv, "mod": operator.mod}


def _definitions(code: str) -> list[tuple[str, tuple[list[str], ast.expr]]]:
    """The functions of `f(x) = 2x` and `function f(x) ... end`; anything else is a syntax error."""
    found: list[tuple[str, tuple[list[str], ast.expr]]] = []
    rest = code
    for pattern in (
        r"function\s+(\w+)\(([\w,\s]*)\)\s*(?:return\s+)?([^\n]+?)\s*\n?\s*end",
        r"^\s*(\w+)\(([\w,\s]*)\)\s*=([^=].*)$",
    ):
        for name, parameters, body in re.findall(pattern, rest, re.MULTILINE):
            found.append((name, ([one.strip() for one in parameters.split(",")], _expression(body))))
        rest = re.sub(pattern, "", rest, flags=re.MULTILINE)
    if rest.strip():
        raise SyntaxError("cannot be read")
    return found


def _expression(text: str) -> ast.expr:
    python = re.sub(r"(\d)([a-z(])", r"\1*\2", text.strip()).replace("^", "**").replace("÷", "//")
    return ast.parse(python, mode="eval").body


def _julia_rows() -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for index in range(20):
        name, parameters, body, what = _FUNCTIONS[index % len(_FUNCTIONS)]
        machine = LittleJulia()
        machine.functions = dict(_definitions(f"{name}({parameters}) = {body}"))
        tests = []
        for _ in range(draw.randint(2, 12)):
            call = f"{name}({', '.join(str(draw.randint(-9, 20)) for _ in parameters.split(','))})"
            tests.append(f"    @test {call} == {machine._value(_expression(call), {})}")
        rows.append(
            {
                "prompt": f"Write a Julia function `{name}({parameters})` that returns {what}. Answer with code only.",
                "test": "\n".join(["using Test", '@testset "tests" begin', *tests, "end"]),
                "solution": f"function {name}({parameters})\n    return {body}\nend",
            }
        )
    return rows


_FUNCTIONS = (
    ("double", "x", "2x", "twice `x`"),
    ("square", "x", "x^2", "the square of `x`"),
    ("area", "a, b", "a * b", "the area of a rectangle with the sides `a` and `b`"),
    ("larger", "a, b", "max(a, b)", "the larger of two numbers"),
    ("gap", "a, b", "abs(a - b)", "how far `a` and `b` are from each other"),
    ("last_digit", "n", "mod(abs(n), 10)", "the last digit of `n`"),
    ("polynomial", "x", "x^2 + 3x - 4", "the value of x^2 + 3x - 4"),
    ("clamped", "x, low, high", "min(max(x, low), high)", "`x`, but at least `low` and at most `high`"),
)


def _an_end_is_not_seen() -> bool:
    drive = Carla()
    drive.reset()
    done = [drive.step(action)[2] for action in drive.solve()][-1]
    return drive.server.scenario.is_done(drive.server._runtime_state) and not done


def _no_code_is_rewarded() -> bool:
    coding = Coding()
    coding.reset()
    return coding.step("print(1)")[1] == coding.step("import os")[1]


def _more_tests_earn_more() -> bool:
    few, many = ("\n".join(["using Test", *["@test double(2) == 4"] * count]) for count in (2, 10))
    rewards = []
    for tests in (few, many):
        julia = Julia()
        julia.reset({"prompt": "", "test": tests})
        rewards.append(julia.step("double(x) = 2x")[1])
    return rewards[0] < rewards[1]


_HERE = "published_subjects.openenv"
SUBJECTS = {
    "openenv-carla-done": Subject((f"{_HERE}:Carla",), _an_end_is_not_seen),
    "openenv-coding-metadata": Subject((f"{_HERE}:Coding", "environment.max_steps=1"), _no_code_is_rewarded),
    "openenv-julia-scale": Subject((f"{_HERE}:Julia", "--data", "rows.jsonl"), _more_tests_earn_more, _julia_rows),
}
