"""A shop: the model finds out what its customer wants. The customer is another player."""

from __future__ import annotations

from typing import Any

from turnsmith import BaseEnvironment

WISHES = ("tea", "bread", "a lamp", "soap")


class Shop(BaseEnvironment):
    """The reward is 1 if the model hands over what the customer wants, and nothing else."""

    def reset(self, seed: int = 0) -> str:
        """The customer comes in."""
        self.wish = WISHES[seed % len(WISHES)]
        role = f"You are a customer in a shop and want {self.wish}. Answer each question in one short sentence."
        self.told = [{"role": "system", "content": role}]
        return self.customer("Good morning! What can I do for you?")

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """End when the shop hands something over; else the customer answers."""
        if "here is" in action.lower():
            is_right = self.wish in action.lower() and sum(wish in action.lower() for wish in WISHES) == 1
            return "The customer leaves.", float(is_right), True, {"success": is_right}
        return self.customer(action), 0.0, False, {}

    def customer(self, said: str) -> str:
        """What the customer answers."""
        self.told.append({"role": "user", "content": said})
        answer = self.ask("customer", self.told)
        self.told.append({"role": "assistant", "content": answer})
        return answer

    def solve(self) -> str:
        """Hand it over."""
        return f"Here is {self.wish}."

    def get_prompt_prefix(self) -> str:
        """The model's role."""
        return "You work in a shop. Find out what the customer wants, then say: Here is ..., and name that one thing."
