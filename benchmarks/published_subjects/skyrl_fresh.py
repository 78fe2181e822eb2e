"""NovaSky-AI/SkyRL: two of the environments of skyrl-gym, with rows of our own and a small database."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from published_subjects import Subject
from published_subjects.open_instruct_blind import ACCEPTED
from turnsmith import BaseEnvironment

SEARCH = (
    "Answer the question. Think first. If you lack knowledge, search with <search> query </search>; the results come "
    "between <information> and </information>. Give the answer as <answer> answer </answer>.\n\nQuestion: "
)
SQL = (
    "Write a query for SQLite. The tables are city(name, country, people) and river(name, country, km). Think inside "
    "of <think> and </think>; you can try queries with <sql> query </sql>; end with <solution> query </solution>.\n\n"
)
QUERIES = (
    ("How many cities are there?", "SELECT count(*) FROM city"),
    ("Which rivers are longer than 1000 km?", "SELECT name FROM river WHERE km > 1000"),
    ("What is the largest city?", "SELECT name FROM city ORDER BY people DESC LIMIT 1"),
    ("Which countries have a river?", "SELECT DISTINCT country FROM river"),
    ("How many people live in the cities of France?", "SELECT sum(people) FROM city WHERE country = 'France'"),
    ("What is the mean length of the rivers?", "SELECT avg(km) FROM river"),
    ("Which cities have a river in their country?",
     "SELECT DISTINCT city.name FROM city JOIN river ON city.country = river.country"),
    ("How many rivers has Germany?", "SELECT count(*) FROM river WHERE country = 'Germany'"),
)  # fmt: skip
CITIES = (("Paris", "France", 2100000), ("Lyon", "France", 520000), ("Berlin", "Germany", 3700000),
          ("Bonn", "Germany", 330000), ("Madrid", "Spain", 3300000), ("Oslo", "Norway", 700000))  # fmt: skip
RIVERS = (("Loire", "France", 1006), ("Seine", "France", 775), ("Elbe", "Germany", 1094), ("Spree", "Germany", 400),
          ("Ebro", "Spain", 930))  # fmt: skip


class Search(BaseEnvironment):
    """A question with a search engine that knows nothing, in two turns."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        from skyrl_gym.envs.search.env import SearchEnv, SearchEnvConfig
        from skyrl_gym.tools import search

        search.call_search_api = lambda **_: ({"result": []}, None)
        question, self.accepted = ACCEPTED[seed % len(ACCEPTED)]
        self.game = SearchEnv(SearchEnvConfig(), {"reward_spec": {"ground_truth": {"target": list(self.accepted)}}})
        return SEARCH + question

    def step(self, action: str) -> Any:
        result = self.game.step(action)
        seen = "\n".join(message["content"] for message in result["observations"])
        return seen, float(result["reward"]), result["done"], {}

    def solve(self) -> str:
        return f"I know this.\n<answer>{self.accepted[0]}</answer>"


class Queries(BaseEnvironment):
    """A question about a small database, in five turns."""

    reward_range = (-1.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        from skyrl_gym.envs.sql.env import SQLEnv

        question, self.query = QUERIES[seed % len(QUERIES)]
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name, "spider/database/world/world.sqlite")
        file.parent.mkdir(parents=True)
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE city(name TEXT, country TEXT, people INTEGER)")
        connection.execute("CREATE TABLE river(name TEXT, country TEXT, km INTEGER)")
        connection.executemany("INSERT INTO city VALUES (?, ?, ?)", CITIES)
        connection.executemany("INSERT INTO river VALUES (?, ?, ?)", RIVERS)
        connection.commit()
        connection.close()
        extras = {"db_id": "world", "reward_spec": {"ground_truth": self.query}, "data": "spider"}
        self.game = SQLEnv(SimpleNamespace(db_path=self.folder.name), extras)
        return SQL + question

    def step(self, action: str) -> Any:
        result = self.game.step(action)
        seen = "\n".join(message["content"] for message in result["observations"])
        return seen, float(result["reward"]), result["done"], {}

    def solve(self) -> str:
        return f"<think>One query is enough.</think>\n<solution>{self.query}</solution>"

    def close(self) -> None:
        self.folder.cleanup()


def _full_stop_raises() -> bool:
    game = Search()
    game.reset(seed=0)
    try:
        game.step(f"{game.solve()}.")
    except AssertionError:
        return True
    return False


def _tags_in_the_other_order_raise() -> bool:
    from skyrl_gym.envs.sql.utils import verify_format_and_extract

    try:
        verify_format_and_extract("<think>No.</think></solution><solution>SELECT 1")
    except ValueError:
        return True
    return False


_HERE = "published_subjects.skyrl_fresh"
SUBJECTS = {
    "skyrl-search-period": Subject((f"{_HERE}:Search",), _full_stop_raises),
    "skyrl-sql-tags": Subject((f"{_HERE}:Queries",), _tags_in_the_other_order_raise),
}
