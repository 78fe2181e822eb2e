"""A shop's support desk with a real SQLite database: find the right order, refund it, and answer the customer."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ToolError
from turnsmith.tools.tool import tool

NAMES, ITEMS = ("Ana Silva", "Ben Okoro", "Chen Wei", "Dana Levi"), ("kettle", "lamp")
TABLES = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer REFERENCES customers, item TEXT, day INTEGER, price INTEGER);
CREATE TABLE refunds (order_id INTEGER PRIMARY KEY REFERENCES orders, amount INTEGER);
"""
ORDERS = """SELECT orders.id, item, day, price FROM orders JOIN customers ON customers.id = customer
WHERE lower(name) = lower(?) ORDER BY day"""


class SupportDesk(BaseEnvironment):
    """A customer asks for one order to be refunded. The reward depends on the database, not on what the model says.

    Reward: 1 for refunding exactly that order, 1/n if it is among n refunds, 0 if it is not refunded.

    Example:
        >>> desk = SupportDesk()
        >>> desk.reset(seed=3)
        'I am Chen Wei. The lamp of 26 May is broken. Please refund that order, and no other.'
        >>> desk.refund(order_id=3484)
        'Order 3484 is refunded: 37.'
        >>> desk.step("Your money is on its way.")
        ('The customer hangs up.', 1.0, True, {'refunded': [3484], 'success': True})
    """

    reward_range = (0.0, 1.0)
    db: sqlite3.Connection

    def reset(self, seed: int = 0) -> str:
        """Fill the database: three orders per customer of only two items, so that the item alone identifies none."""
        draw = random.Random(seed)
        # turnsmith makes all calls from one thread, but a tool tried by hand may run in another.
        self.db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.db.executescript(TABLES)
        self.db.executemany("INSERT INTO customers VALUES (?, ?)", enumerate(NAMES))
        days, numbers = draw.sample(range(1, 32), 12), draw.sample(range(1000, 9999), 12)
        orders = [(numbers[i], i % 4, draw.choice(ITEMS), days[i], draw.randint(10, 90)) for i in range(12)]
        self.db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", orders)
        self.goal, customer, item, day, _ = draw.choice(orders)
        return f"I am {NAMES[customer]}. The {item} of {day} May is broken. Please refund that order, and no other."

    @tool
    def find_orders(self, customer: str) -> str:
        """List all orders of a customer.

        Args:
            customer: The customer's full name.
        """
        rows = self._rows(ORDERS, customer.strip(), missing="no customer of that name")
        return "\n".join(f"order {order}: {item}, {day} May, price {price}" for order, item, day, price in rows)

    @tool
    def refund(self, order_id: int) -> str:
        """Pay the full price of an order back. This cannot be undone.

        Args:
            order_id: The order's number.
        """
        [(price,)] = self._rows("SELECT price FROM orders WHERE id = ?", order_id, missing=f"no order {order_id}")
        if self._rows("SELECT 1 FROM refunds WHERE order_id = ?", order_id):
            raise ToolError(f"Order {order_id} is refunded already.")
        self.db.execute("INSERT INTO refunds VALUES (?, ?)", (order_id, price))
        return f"Order {order_id} is refunded: {price}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """End the episode with the answer to the customer; only the state of the database is scored."""
        refunds = [order for (order,) in self._rows("SELECT order_id FROM refunds")]
        reward = 1 / len(refunds) if self.goal in refunds else 0.0
        return "The customer hangs up.", reward, True, {"refunded": refunds, "success": refunds == [self.goal]}

    def solve(self) -> list[Any]:
        """Refund the order, and answer."""
        return [{"name": "refund", "arguments": {"order_id": self.goal}}, "Your money is on its way."]

    def get_prompt_prefix(self) -> str:
        """The model's role."""
        return "You are a shop's support desk. Do what the customer asks with the tools, then answer in plain text."

    def close(self) -> None:
        """Close the database."""
        if "db" in vars(self):
            self.db.close()

    def _rows(self, query: str, *values: object, missing: str = "") -> list[tuple[Any, ...]]:
        try:
            rows = self.db.execute(query, values).fetchall()
        except (OverflowError, UnicodeError):  # No table has a value that SQLite cannot store.
            rows = []
        if missing and not rows:
            raise ToolError(f"There is {missing}.")
        return rows
