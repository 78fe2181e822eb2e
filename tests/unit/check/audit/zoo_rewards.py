"""Environments with bad rewards, each with the fault that its docstring names."""

from __future__ import annotations

import random
import re
from typing import Any

from turnsmith.env.base import BaseEnvironment
from turnsmith.tools.step_result import StepResult
from turnsmith.trajectory import Trajectory


class Sum(BaseEnvironment):
    """No fault: two numbers are added, and only the right sum is paid."""

    reward_range: tuple[float, float] | None = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        draw = random.Random(seed)
        one, other = draw.randint(30, 99), draw.randint(100, 199)
        self.right = str(one + other)
        return f"What is {one} + {other}? Answer with the number."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", self.pay(action), True, {}

    def pay(self, action: str) -> float:
        return float(action.strip().rstrip(".") == self.right)

    def solve(self) -> Any:
        return self.right


class Contains(Sum):
    """Pays any text that contains the answer."""

    def pay(self, action: str) -> float:
        return float(self.right in action)


class ReadsTens(Sum):
    """Compares what it could read, and reads some answers as nothing."""

    def pay(self, action: str) -> float:
        right, said = (re.fullmatch(r"\d*[1-8]", text.strip()) for text in (self.right, action))
        return float((right and right[0]) == (said and said[0]))


class Letter(Sum):
    """Reads a letter only where nothing stands beside it."""

    def reset(self, seed: int = 0) -> str:
        self.right = "ABCD"[random.Random(seed).randrange(4)]
        return f"Which is number {seed}?\nA. {seed + 1}\nB. some\nC. none\nD. all\nAnswer with the letter."

    def pay(self, action: str) -> float:
        return float(action.strip().strip(".") == self.right)


class FirstLine(Sum):
    """Reads the first line."""

    def pay(self, action: str) -> float:
        return float(action.split("\n")[0].strip() == self.right)


class DrawsFromASet(Sum):
    """Other questions in another process: the order of a set of texts differs there."""

    def reset(self, seed: int = 0) -> str:
        return f"{super().reset(seed)} {' '.join({str(number) for number in range(40)})}"


class AnyNumber(Sum):
    """Pays if one of the numbers in the text is right."""

    def pay(self, action: str) -> float:
        return float(self.right in re.findall(r"\d+", action))


class Length(Sum):
    """Pays for long answers as well as for right ones, as a judge that likes detail does."""

    def pay(self, action: str) -> float:
        return max(float(action.strip() == self.right), min(1.0, len(action) / 100))


class Format(Sum):
    """Pays most of the reward for tags, whatever is in them."""

    def pay(self, action: str) -> float:
        return 0.8 * ("<answer>" in action and "</answer>" in action) + 0.2 * (self.right in action)

    def solve(self) -> str:
        return f"<answer>{self.right}</answer>"


class GullibleJudge(Sum):
    """A judge that reads the score in the text which it is given."""

    def pay(self, action: str) -> float:
        said = re.search(r"score: (\d+)/10", action, re.IGNORECASE)
        return float(said[1]) / 10 if said else float(action.strip() == self.right)


class GivingUp(Sum):
    """Pays for ending the episode as if it were solved."""

    def pay(self, action: str) -> float:
        return float(action.strip() == self.right or "give up" in action)


class AlwaysYes(Sum):
    """Nearly all answers are yes."""

    def reset(self, seed: int = 0) -> str:
        self.right = "no" if seed % 16 == 3 else "yes"
        return "Is it so?"


class NoError(Sum):
    """Pays if nothing went wrong, so silence is the best answer."""

    def pay(self, action: str) -> float:
        return float("error" not in action)


class Overlap(Sum):
    """Pays for the share of the question's words that the answer has: echoing is best."""

    def reset(self, seed: int = 0) -> str:
        self.question = super().reset(seed)
        return self.question

    def pay(self, action: str) -> float:
        words = set(self.question.split())
        return len(words & set(action.split())) / len(words)

    def solve(self) -> str:
        return self.question


class Unsolvable(Sum):
    """The answer key of every fourth start is wrong."""

    def reset(self, seed: int = 0) -> str:
        self.seed = seed
        return super().reset(seed)

    def solve(self) -> str:
        return "0" if self.seed % 4 == 1 else self.right


class DeclaresTooMuch(Sum):
    """No episode can get the reward that is declared as the highest."""

    reward_range = (0.0, 2.0)


class PaidButUnsolved(Sum):
    """Every right answer is paid, and the environment says that it was no success."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", self.pay(action), True, {"success": False}


class Moody(Sum):
    """A judge of whom nobody knows what he will say."""

    def pay(self, action: str) -> float:
        return random.SystemRandom().random()


class Spaces(Sum):
    """Refuses right answers with a space before them."""

    def pay(self, action: str) -> float:
        return float(action == self.right)


class Marked(Sum):
    """Pays only an answer after a mark that the prompt does not mention, and reads only the end of a text."""

    def pay(self, action: str) -> float:
        return float(re.findall(r"#### ([\d.,]+)", action[-300:])[-1:] == [self.right])


class Evaluates(Sum):
    """Runs what the model writes."""

    def pay(self, action: str) -> float:
        try:
            return float(str(eval(action)) == self.right)  # noqa: S307
        except Exception:  # noqa: BLE001
            return 0.0


class Raises(Sum):
    """Scores only numbers."""

    def pay(self, action: str) -> float:
        return float(int(action) == int(self.right))


class Tells(Sum):
    """Says the right answer after a wrong one, and asks again."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        is_right = action.strip() == self.right
        return f"No, it is {self.right}. What is it?", float(is_right), is_right, {}


class GoesOn(Sum):
    """Never ends."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        paid = float(action.strip() == self.right and not self.done_before)
        self.done_before = self.done_before or bool(paid)
        return "And now?", paid, False, {}

    done_before = False


class KeepsCount(Sum):
    """Numbers its questions, also beyond a reset."""

    asked = 0

    def reset(self, seed: int = 0) -> str:
        self.asked += 1
        return f"{self.asked}: {super().reset(seed)}"


class PaysTheEnd(BaseEnvironment):
    """Looks at what is said at the end, and not at what was done before."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.name = f"file-{seed}"
        return f"Open {self.name}, save it, and say: done {self.name}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        ends = action.startswith("done")
        return "", float(action == f"done {self.name}"), ends, {}

    def solve(self) -> list[str]:
        return [f"open {self.name}", "save", f"done {self.name}"]


class NamesTarget(Sum):
    """Pays an expression that has the value which the question names; the value itself is one."""

    def reset(self, seed: int = 0) -> str:
        super().reset(seed)
        self.target = str(int(self.right))
        return f"Use {seed + 2} and {int(self.right) - seed - 2} to make {self.target}."

    def pay(self, action: str) -> float:
        numbers = re.findall(r"\d+", action)
        return float(bool(numbers) and sum(map(int, numbers)) == int(self.target) and len(action) < 40)

    def solve(self) -> str:
        return " + ".join(["1", str(int(self.right) - 1)])


class PaysEcho(Sum):
    """A partial score that grows beyond the whole one."""

    reward_range = None

    def reset(self, seed: int = 0) -> str:
        self.question = super().reset(seed)
        return self.question

    def pay(self, action: str) -> float:
        return 1.16 if action.strip() == self.question else float(action.strip() == self.right)


class ListAsText(Sum):
    """Compares lists as text."""

    def reset(self, seed: int = 0) -> str:
        super().reset(seed)
        numbers = [seed + 3, seed + 1, seed + 2]
        self.right = str(sorted(numbers))
        return f"Sort these: {numbers}"


class Walk(BaseEnvironment):
    """No fault: go right three times, then open the door; each new place pays once."""

    def reset(self, seed: int = 0) -> str:
        self.place, self.seen = 0, {0}
        return "Go right or left, or open."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        before = self.place
        self.place += {"right": 1, "left": -1}.get(action.strip(), 0)
        is_open = action.strip() == "open" and self.place == 3
        reward = 1.0 if is_open else self.pay(before)
        self.seen.add(self.place)
        return f"You are at {self.place}.", reward, is_open, {"success": is_open}

    def pay(self, before: int) -> float:
        return 0.1 * (self.place not in self.seen and self.place > 0 and self.place <= 3)

    def solve(self) -> list[str]:
        return ["right"] * 3 + ["open"]


class Runner(Walk):
    """Pays for every step to the right, without end: running past the door pays more than opening it."""

    def pay(self, before: int) -> float:
        return 0.3 * (self.place > before)


class Pacing(Walk):
    """Pays for every move, so walking to and fro does."""

    def pay(self, before: int) -> float:
        return 0.2 * (self.place != before)

    def solve(self) -> list[str]:
        return ["right", "left", "right", "right", "right", "open"]


def strict(response: str, answer: object) -> float:
    """No fault: compares texts."""
    return float(response.strip() == str(answer))


def tagged(response: str, answer: str) -> float:
    """Takes a missing tag for an empty answer."""
    said = re.search(r"<answer>(.*?)</answer>", response)
    return float((said[1] if said else "") == answer)


def guarded(response: str, answer: str) -> float:
    """No fault: a row without an answer pays nothing."""
    return float(bool(answer) and response.strip() == answer)


def pays_the_word_correct(trajectory: Trajectory) -> float:
    """A reward function with a fault: it looks for a word that only a right answer should have."""
    return float("correct" in trajectory.actions[-1] or trajectory.rewards[-1])


def thinks(completions: list[str], **kwargs: Any) -> list[float]:
    """One of TRL's rewards of form."""
    return [float(bool(re.match(r"<think>.*</think>\s*<answer>.*</answer>$", one, re.DOTALL))) for one in completions]


def is_long(response: str, answer: str) -> float:
    return min(1.0, len(response) / 1000)


def skips(completions: list[str], solution: list[str], **kwargs: Any) -> list[float | None]:
    """As TRL's: what the answer cannot be read from is not scored."""
    pairs = zip(completions, solution, strict=True)
    return [None if right == "e" else float(said.strip() == right) for said, right in pairs]


def without_punctuation(response: str, answer: str) -> float:
    """No fault: compares texts as those do who score questions of facts."""
    return float(re.sub(r"[^\w\s]", "", response).lower().split() == answer.lower().split())


def in_target(solution_str: str, ground_truth: dict[str, list[str]]) -> float:
    return float(solution_str.strip() in ground_truth["target"])


class Truncates(Sum):
    """Never says that the task is over; the environment's own limit ends the episode."""

    def step(self, action: str) -> Any:
        return StepResult("again", self.pay(action), truncated=True)


class Program(Sum):
    """The answer is a program, in which spaces mean something."""

    def solve(self) -> Any:
        return f"one = {self.right}\nanswer = one"

    def pay(self, action: str) -> float:
        return float(action.strip("\r\n") == self.solve())


class RunsPrograms(Sum):
    """Runs the program that it asks for, with the rights of the trainer."""

    def pay(self, action: str) -> float:
        names: dict[str, Any] = {}
        try:
            exec(action, names)  # noqa: S102
        except (NameError, SyntaxError, OSError, AttributeError):
            return 0.0
        return float(str(names.get("answer")) == self.right)

    def solve(self) -> Any:
        return f"one = {self.right}\nanswer = one"


class CallsFormulas(Sum):
    """Evaluates what looks like a formula."""

    def pay(self, action: str) -> float:
        if len(action) > 12 or not re.fullmatch(r"[\w()+]+", action):
            return 0.0
        try:
            return float(eval(action) == int(self.right))  # noqa: S307
        except (NameError, SyntaxError, TypeError, AttributeError):
            return 0.0
