"""sierra-research/tau2-bench: its desks of a bank and a shop, with data of ours and a customer of one message."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import call_in
from turnsmith import BaseEnvironment, ToolDefinition

PEOPLE = ("Lena Moss", "Omar Diaz", "Ruth Klein", "Jon Abara", "Mei Tan", "Paul Novak")
STATE = {"address1": "1 Main Street", "address2": "", "city": "Austin", "country": "USA", "state": "TX", "zip": "78701"}
BANK_POLICY = (
    "You help customers of a bank. Look them up by name first. Internal tools have to be unlocked once with "
    "unlock_discoverable_agent_tool and are then called with call_discoverable_agent_tool, whose arguments are JSON: "
    "apply_checking_account_credit_5829 (account_id, amount, credit_type: rebate_credit or fee_refund), "
    "apply_savings_account_credit_6831 (account_id, amount, credit_type), apply_statement_credit_8472 (user_id, "
    "credit_card_account_id, amount, reason), transfer_funds_between_bank_accounts_7291 (source_account_id, "
    "destination_account_id, amount), and get_all_user_accounts_by_user_id_3847 (user_id) to see all accounts."
)
SHOP_POLICY = (
    "You help customers of a shop. Find them by name and zip code, and look at their order. A pending order can be "
    "cancelled because it is no longer needed or was ordered by mistake; of a delivered one, items can be returned."
)


def _bank_data() -> dict[str, Any]:
    users, accounts, cards = {}, {}, {}
    for number, name in enumerate(PEOPLE):
        user = f"user{number}"
        users[user] = {
            "name": name,
            "user_id": user,
            "address": "1 Main Street, Austin, TX 78701",
            "email": f"{name.split()[0].lower()}@example.com",
            "phone_number": f"512-555-010{number}",
            "date_of_birth": f"03/1{number}/1990",
        }
        for kind in ("checking", "savings"):
            accounts[f"{kind}{number}"] = {
                "account_id": f"{kind}{number}",
                "user_id": user,
                "class": kind,
                "level": "Blue Account",
                "date_opened": "01/15/2023",
                "status": "OPEN",
                "current_holdings": f"${900 + 150 * number}.00",
            }
        cards[f"card{number}"] = {
            "account_id": f"card{number}",
            "user_id": user,
            "card_type": "Bronze Rewards Card",
            "status": "ACTIVE",
            "current_balance": "$250.00",
        }
    return {"users": {"data": users}, "accounts": {"data": accounts}, "credit_card_accounts": {"data": cards}}


def _bank_tasks() -> list[dict[str, Any]]:
    """Each with the calls that the evaluation expects; amounts are written as in money, 33.00."""
    wanted = (
        ("I was charged a monthly fee of $33 by mistake. Please refund it to my checking account.",
         "apply_checking_account_credit_5829",
         '"account_id": "checking0", "amount": 33.00, "credit_type": "fee_refund"'),
        ("Please move $120.50 from my savings to my checking account.", "transfer_funds_between_bank_accounts_7291",
         '"source_account_id": "savings1", "destination_account_id": "checking1", "amount": 120.50'),
        ("My $25 rebate never arrived. It belongs to my checking account.",
         "apply_checking_account_credit_5829",
         '"account_id": "checking2", "amount": 25.00, "credit_type": "rebate_credit"'),
        ("A late fee of $39 on my credit card was your error, you said, and would be credited as an error correction.",
         "apply_statement_credit_8472",
         '"user_id": "user3", "credit_card_account_id": "card3", "amount": 39.00, "reason": "error_correction"'),
        ("Please move $200 from my checking to my savings account.", "transfer_funds_between_bank_accounts_7291",
         '"source_account_id": "checking4", "destination_account_id": "savings4", "amount": 200.00'),
        ("You charged $12.75 too much in fees to my checking account. I want it back.",
         "apply_checking_account_credit_5829",
         '"account_id": "checking5", "amount": 12.75, "credit_type": "fee_refund"'),
    )  # fmt: skip
    tasks = []
    for number, (said, tool, arguments) in enumerate(wanted):
        calls = [
            ("get_user_information_by_name", {"customer_name": PEOPLE[number]}),
            ("unlock_discoverable_agent_tool", {"agent_tool_name": tool}),
            ("call_discoverable_agent_tool", {"agent_tool_name": tool, "arguments": f"{{{arguments}}}"}),
        ]
        tasks.append(_task(f"bank_{number}", f"I am {PEOPLE[number]}. {said}", calls, ["DB"]))
    return tasks


def _shop_data() -> dict[str, Any]:
    users, orders, products = {}, {}, {}
    for number, name in enumerate(PEOPLE):
        first, last = name.split()
        user, order, item = f"{first}_{last}_{number}".lower(), f"#W{1000 + number}", f"{2000 + number}"
        price, options = 20.0 + 5 * number, {"color": ("blue", "red")[number % 2]}
        payment = {"source": "credit_card", "id": f"credit_card_{number}", "brand": "visa", "last_four": "4242"}
        product = {"name": "lamp", "product_id": f"{3000 + number}"}
        users[user] = {
            "user_id": user,
            "name": {"first_name": first, "last_name": last},
            "address": STATE,
            "email": f"{first.lower()}@example.com",
            "payment_methods": {payment["id"]: payment},
            "orders": [order],
        }
        variant = {"item_id": item, "options": options, "available": True, "price": price}
        products[product["product_id"]] = {**product, "variants": {item: variant}}
        orders[order] = {
            "order_id": order,
            "user_id": user,
            "address": STATE,
            "items": [{**product, "item_id": item, "price": price, "options": options}],
            "status": "pending" if number % 2 else "delivered",
            "fulfillments": [],
            "payment_history": [
                {"transaction_type": "payment", "amount": price, "payment_method_id": payment["id"]},
            ],
        }
    return {"products": products, "users": users, "orders": orders}


def _shop_tasks() -> list[dict[str, Any]]:
    """Paid by the data and by assertions, as nearly all of the project's tasks are, with none of these to be made."""
    tasks = []
    for number, name in enumerate(PEOPLE):
        first, last = name.split()
        order = f"#W{1000 + number}"
        calls: list[tuple[str, dict[str, Any]]] = [
            ("find_user_id_by_name_zip", {"first_name": first, "last_name": last, "zip": "78701"}),
            ("get_order_details", {"order_id": order}),
        ]
        if number % 2:
            said = f"Please cancel my order {order}, which I do not need any longer."
            calls.append(("cancel_pending_order", {"order_id": order, "reason": "no longer needed"}))
        else:
            said = f"I want to return the lamp of my order {order}, to the card that I paid with."
            given = {"order_id": order, "item_ids": [f"{2000 + number}"], "payment_method_id": f"credit_card_{number}"}
            calls.append(("return_delivered_order_items", given))
        tasks.append(_task(f"{number}", f"I am {name} in zip code 78701. {said}", calls, ["DB", "NL_ASSERTION"]))
    return tasks


def _task(name: str, said: str, calls: list[tuple[str, dict[str, Any]]], basis: list[str]) -> dict[str, Any]:
    actions = [
        {"action_id": f"{name}_{number}", "name": tool, "arguments": arguments, "requestor": "assistant"}
        for number, (tool, arguments) in enumerate(calls)
    ]
    return {
        "id": name,
        "description": {"purpose": said},
        "user_scenario": {"instructions": said},
        "evaluation_criteria": {"actions": actions, "communicate_info": [], "reward_basis": basis},
    }


@lru_cache
def project() -> Any:
    """The project's modules, which read the data of their domains from the folder that a variable names."""
    data = Path(__file__).with_name("tau2_data")
    files = {
        "banking_knowledge/db.json": json.dumps(_bank_data()),
        "banking_knowledge/prompts/no_knowledge.md": BANK_POLICY,
        "retail/db.json": json.dumps(_shop_data()),
        "retail/policy.md": SHOP_POLICY,
    }
    for name, text in files.items():
        file = data / "tau2" / "domains" / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f"{file.name}.{os.getpid()}")
            part.write_text(text, encoding="utf-8")
            part.replace(file)
    os.environ |= {"TAU2_DATA_DIR": str(data), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    from loguru import logger

    logger.disable("tau2")
    from tau2.data_model import message, simulation, tasks
    from tau2.evaluator import evaluator
    from tau2.registry import registry
    from tau2.runner import build

    return SimpleNamespace(
        message=message, simulation=simulation, tasks=tasks, evaluator=evaluator, registry=registry, build=build
    )


class Desk(BaseEnvironment):
    """One request. Calls of tools are actions; what the model says ends the conversation, and it is evaluated."""

    reward_range = (0.0, 1.0)
    domain = ""

    def requests(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def reset(self, seed: int = 0) -> str:
        tau2, requests = project(), self.requests()
        self.task = tau2.tasks.Task.model_validate(requests[seed % len(requests)])
        run = SimpleNamespace(domain=self.domain)
        if self.domain == "banking_knowledge":
            run.retrieval_config = "no_knowledge"
        self.settings = tau2.build._build_env_kwargs(run, self.task)
        self.desk = tau2.registry.get_env_constructor(self.domain)(**self.settings)
        self.messages: list[Any] = []
        schemas = [tool.openai_schema["function"] for tool in self.desk.get_tools()]
        self.step_tools = [ToolDefinition(one["name"], one["description"], one["parameters"]) for one in schemas]
        return self.hear(str(self.task.user_scenario.instructions))

    def get_prompt_prefix(self) -> str:
        return str(self.desk.get_policy())

    def step(self, action: str) -> Any:
        tau2, call = project(), call_in(action)
        if call is None:
            self.messages.append(tau2.message.AssistantMessage(role="assistant", content=action or "..."))
            return self.hear("Thank you. ###STOP###"), self.evaluate(), True, {}
        asked = tau2.message.ToolCall(id=f"call_{len(self.messages)}", requestor="assistant", **call)
        answer = self.desk.get_response(asked)
        self.messages += [tau2.message.AssistantMessage(role="assistant", tool_calls=[asked]), answer]
        return str(answer.content), 0.0, False, {}

    def hear(self, said: str) -> str:
        self.messages.append(project().message.UserMessage(role="user", content=said))
        return said

    def evaluate(self) -> float:
        """The reward of the full evaluation, which the project's Gymnasium entry asks for."""
        tau2 = project()
        run = tau2.simulation.SimulationRun(
            id="run",
            task_id=self.task.id,
            start_time="2025-11-14T03:40:00",
            end_time="2025-11-14T03:50:00",
            duration=600.0,
            termination_reason="user_stop",
            messages=self.messages,
        )
        evaluated = tau2.evaluator.evaluate_simulation(
            simulation=run,
            task=self.task,
            evaluation_type=tau2.evaluator.EvaluationType.ALL,
            solo_mode=False,
            domain=self.domain,
            env_kwargs=self.settings,
        )
        return float(evaluated.reward)

    def solve(self) -> list[Any]:
        actions = self.task.evaluation_criteria.actions
        return [*({"name": one.name, "arguments": one.arguments} for one in actions), "All of this is done."]


class Bank(Desk):
    domain = "banking_knowledge"

    def requests(self) -> list[dict[str, Any]]:
        return _bank_tasks()


class Shop(Desk):
    domain = "retail"

    def requests(self) -> list[dict[str, Any]]:
        return _shop_tasks()


def _reward(desk: Desk, actions: list[Any]) -> float:
    return [desk.step(json.dumps(action) if isinstance(action, dict) else action)[1] for action in actions][-1]


def _one_more_look_earns_nothing() -> bool:
    desk = Bank()
    desk.reset(seed=0)
    tool = "get_all_user_accounts_by_user_id_3847"
    look = [
        {"name": "unlock_discoverable_agent_tool", "arguments": {"agent_tool_name": tool}},
        {
            "name": "call_discoverable_agent_tool",
            "arguments": {"agent_tool_name": tool, "arguments": '{"user_id": "user0"}'},
        },
    ]
    return _reward(desk, look + desk.solve()) == 0


def _number_without_cents_earns_nothing() -> bool:
    desk = Bank()
    desk.reset(seed=0)
    actions = json.loads(json.dumps(desk.solve()).replace("33.00", "33"))
    return _reward(desk, actions) == 0


def _most_tasks_cannot_be_scored() -> bool:
    desk = Shop()
    desk.reset(seed=0)
    try:
        return _reward(desk, desk.solve()) != 1
    except ValueError:
        return True


_HERE = "published_subjects.tau2_blind"
_ROOM = ("environment.max_steps=20", "inference.max_turns=20", "inference.max_prompt_tokens=16384")
_MORE = ("inference.max_episode_tokens=32768",)
SUBJECTS = {
    "tau2-extra-reads": Subject((f"{_HERE}:Bank", *_ROOM, *_MORE), _one_more_look_earns_nothing),
    "tau2-missing-assertions": Subject((f"{_HERE}:Shop", *_ROOM, *_MORE), _most_tasks_cannot_be_scored),
    "tau2-number-spelling": Subject((f"{_HERE}:Bank", *_ROOM, *_MORE), _number_without_cents_earns_nothing),
}
