"""The worker that plays episodes for verl, in this process or in a Ray actor, keeps and writes their records."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from tests.unit.trainer.episode_queue import Queue, replace_queue, until
from transformers import AutoTokenizer

from turnsmith.config import ConfigStore, InferenceConfig
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import InternalError
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.ledger import Ledger
from turnsmith.rollout.spec import Limits, RolloutSpec
from turnsmith.tools.parsing import JSONActionParser, ReActActionParser
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.run_parts import EpisodePlan
from turnsmith.trainer.verl.agent_loop import EpisodeWorker, local_worker, start_actor
from turnsmith.trainer.verl.server_pool import ServerPool
from turnsmith.trainer.verl.transformers_server import ServerOutput
from turnsmith.trainer.verl.workers import EpisodeWorkers
from turnsmith.trajectory import Decision, Trajectory

SPEC = EnvironmentSpec.of(GuessNumber)


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return replace_queue(monkeypatch)


def test_actors_are_spread_over_the_nodes_that_have_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(name: str, cpus: int, *, alive: bool = True) -> dict[str, Any]:
        return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {"memory": 1}}

    class ActorClass:
        """Stands where Ray's class of actors is; every method of an actor returns what it was called with."""

        def options(self, num_cpus: int, scheduling_strategy: Any) -> Any:
            placed.append(scheduling_strategy.node_id)
            return self

        def remote(self, *args: Any) -> Any:
            return SimpleNamespace(stay=Method("stay"), finish_step=Method("finish_step"))

    class Method:
        def __init__(self, name: str) -> None:
            self.name = name

        def remote(self, *args: Any) -> Any:
            answer: Future[Any] = Future()
            if self.name != "stay":
                answer.set_result(args)
            return SimpleNamespace(future=lambda: answer)

    placed: list[str] = []
    nodes = [node("a" * 56, 4), node("b" * 56, 0), node("c" * 56, 8), node("d" * 56, 8, alive=False)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "remote", lambda kind: ActorClass())
    handles = [start_actor(place, None, None, None) for place in range(3)]  # type: ignore[arg-type]
    assert [name[0] for name in placed] == ["a", "c", "a"]
    assert handles[0].call("finish_step", 3, ["a"]).result() == (3, ["a"])
    assert not handles[0].lost.done()


@pytest.fixture(scope="module")
def settings(tiny_folder: str) -> Any:
    """verl's config of a run with groups of two episodes."""
    config = ConfigStore()
    config.training.batch_size, config.training.group_size = 4, 2
    return verl_config(config, model_path=tiny_folder, run_dir="unused", steps=1)


@pytest.fixture
def plan(tmp_path: Path) -> EpisodePlan:
    run = RunFolder.create(tmp_path, "run")
    config = ConfigStore(inference=InferenceConfig(tool_format="json"))
    return EpisodePlan(config, RolloutSpec(environment=SPEC, limits=Limits(turns=2)), str(run.path))


@pytest.fixture
def engine(tiny_folder: str) -> ScriptedEngine:
    return ScriptedEngine(["8", "9"], Chat(AutoTokenizer.from_pretrained(tiny_folder)))


def rows(*uids: str) -> TensorDict:
    """Groups as verl's trainer dispatches them: the second one starts from another seed."""
    columns: dict[str, Any] = {
        "uid": NonTensorStack(*uids),
        "index": torch.arange(len(uids)),
        "start_seed": torch.arange(len(uids)),
        "start_task": NonTensorStack(*[""] * len(uids)),
        "global_steps": NonTensorData(1),
        "agent_name": NonTensorData("turnsmith"),
    }
    return TensorDict(columns, batch_size=[len(uids)])


def test_a_worker_in_this_process_plays_records_and_reports(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine
) -> None:
    ledger = Ledger()
    workers = EpisodeWorkers(lambda place: local_worker(plan, settings, engine), 1, 2, ledger)
    workers.generate_sequences(rows("a", "b"))
    until(lambda: {queue.get(uid, {}).get("status") for uid in "ab"} == {"finished"})
    assert sorted(key for key in queue if "_" in key) == ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    until(lambda: workers.pulse()[0] > 8)
    assert workers.pulse()[1] == "worker 0: no episode is running"
    report = workers.finish_step(1)
    assert report is not None
    assert report.outcomes == {"turn_limit": 4}
    assert ledger.close(1, ["a-0", "a-1", "b-0", "b-1"]).trained == 4
    episodes = read_episodes(plan.run_dir, step=1)
    assert sorted(episode.episode_id for episode in episodes) == ["a-0", "a-1", "b-0", "b-1"]
    again = workers.finish_step(2)
    assert again is not None
    assert not again.outcomes, "they were reported already"
    workers.replace_lost()  # this process is never lost
    result = workers.evaluate(SPEC, EvaluationPlan(episodes=3, limits=Limits(turns=2)))
    assert len(result.trajectories) == 3
    after = workers.finish_step(3)
    assert after is not None
    assert not after.outcomes, "training does not see the episodes of an evaluation"


async def test_a_worker_keeps_finished_episodes_until_their_step(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine
) -> None:
    worker = EpisodeWorker("7", plan, settings, engine)
    await worker.generate_sequences(rows("a", "b"))
    await asyncio.gather(*worker.background_tasks)
    first = await worker.finish_step(1, ["b"])
    assert sorted(entry.episode_id for entry in first.entries) == ["b-0", "b-1"]
    assert [file.name for file in RunFolder.open(plan.run_dir).episodes_dir.rglob("*7*")]
    rest = await worker.finish_step(2, ["a"])
    assert sorted(entry.episode_id for entry in rest.entries) == ["a-0", "a-1"]
    assert (await worker.finish_step(3)).entries == []


async def test_updates_of_one_step_have_files_of_their_own(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine
) -> None:
    worker = EpisodeWorker("7", plan, settings, engine)
    await worker.generate_sequences(rows("a"))
    await asyncio.gather(*worker.background_tasks)
    await worker.finish_step(1, ["a"], 0)
    worker = EpisodeWorker("7", plan, settings, engine)  # in place of one that was lost between the updates
    await worker.generate_sequences(rows("b"))
    await asyncio.gather(*worker.background_tasks)
    await worker.finish_step(1, ["b"], 1)
    names = [episode.episode_id for episode in read_episodes(plan.run_dir, step=1)]
    assert sorted(names) == ["a-0", "a-1", "b-0", "b-1"]


async def test_what_was_handed_over_stays_when_the_step_is_asked_for_again(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine
) -> None:
    worker = EpisodeWorker("7", plan, settings, engine)
    for times_handed, group in enumerate("abc"):  # as often as another worker is lost in the step
        await worker.generate_sequences(rows(group))
        await asyncio.gather(*worker.background_tasks)
        await worker.finish_step(1, None, 0, times_handed)
    names = [episode.episode_id for episode in read_episodes(plan.run_dir, step=1)]
    assert sorted(names) == [f"{group}-{place}" for group in "abc" for place in range(2)]
    await worker.generate_sequences(rows("d"))
    await asyncio.gather(*worker.background_tasks)
    await worker.finish_step(1)  # made again, after `load_checkpoint`
    assert {episode.episode_id for episode in read_episodes(plan.run_dir, step=1)} == {"d-0", "d-1"}


class Server:
    """Stands where a rollout server's handle is; what it says comes from an engine."""

    def __init__(self, engine: ScriptedEngine, begun: asyncio.Barrier) -> None:
        self.engine, self.sessions, self._begun = engine, list[str](), begun
        self.generate = self

    async def remote(self, request_id: str, prompt_ids: list[int], **request: Any) -> ServerOutput:
        self.sessions.append(request_id.rsplit("-", 1)[0])
        if self.sessions.count(self.sessions[-1]) == 1:
            await self._begun.wait()  # no episode ends before all have begun, so servers are chosen by load alone
        said = await self.engine.generate(prompt_ids, Sampling(), session=request_id)
        return ServerOutput(list(said.token_ids), list(said.log_probs), "completed", extra_fields={"global_steps": 1})


async def test_an_episode_in_verls_worker_stays_on_one_server(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine
) -> None:
    begun = asyncio.Barrier(4)
    servers = [Server(engine, begun), Server(engine, begun)]
    pool = ServerPool(servers)
    worker = EpisodeWorker("0", plan, settings, pool)
    await worker.generate_sequences(rows("a", "b"))
    await asyncio.gather(*worker.background_tasks)
    sessions = [Counter(server.sessions) for server in servers]
    assert [sorted(counted.values()) for counted in sessions] == [[2, 2], [2, 2]]
    assert sessions[0].keys() | sessions[1].keys() == {"a-0", "a-1", "b-0", "b-1"}


async def test_a_group_with_equal_rewards_is_handed_back_for_another_and_settled(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    plan.config.training.group_size, plan.config.training.filter_groups = 2, True
    worker, ledger = EpisodeWorker("7", plan, settings, engine), Ledger(may_carry=True)
    ledger.dispatch(["a-0", "a-1", "b-0", "b-1"])
    await worker.generate_sequences(rows("a", "b"))
    await asyncio.gather(*worker.background_tasks)
    assert {queue[uid]["status"] for uid in "ab"} == {"failure"}, "verl replaces such groups"
    assert not caplog.records, "nothing failed"
    done = await worker.finish_step(1, ["another"])
    assert worker.context.finished == [], "their memory is freed, although they are in no batch"
    assert not done.fault
    assert {entry.decision.value for entry in done.entries} == {"filtered"}
    assert {episode.decision.value for episode in read_episodes(plan.run_dir, step=1)} == {"filtered"}
    assert done.report.metrics()["groups/filtered"] == 2
    assert "failures/filtered" not in done.report.metrics()
    assert len(done.report.rewards) == 4, "they are what the model does, and a curriculum is told"
    ledger.end(done.entries)
    step = ledger.close(1, [])
    assert (step.decisions["filtered"], step.carried, step.details) == (4, [], [])


async def test_a_masked_episode_is_handed_over_without_tokens(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mask_all(trajectory: Trajectory) -> None:
        trajectory.decision = Decision.MASKED

    monkeypatch.setattr("turnsmith.trainer.verl.agent_loop.mask_untrainable", mask_all)
    worker = EpisodeWorker("7", plan, settings, engine)
    await worker.generate_sequences(rows("a"))
    await asyncio.gather(*worker.background_tasks)
    assert queue["a"]["status"] != "failure"
    done = await worker.finish_step(1, ["a"])
    assert not done.fault
    assert {entry.decision.value for entry in done.entries} == {"masked"}


async def test_an_episode_that_cannot_be_handed_over_is_told(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def put(**unused: Any) -> None:
        raise TimeoutError("the queue does not answer")

    monkeypatch.setattr("transfer_queue.async_kv_batch_put", put)
    worker = EpisodeWorker("7", plan, settings, engine)
    assert not (await worker.pulse())[2]
    await worker.generate_sequences(rows("a"))
    while not (await worker.pulse())[2]:
        await asyncio.sleep(0.01)
    told = r"Episode a-\d could not be handed to the trainer: TimeoutError\('the queue does not answer'\)"
    assert re.fullmatch(told, str((await worker.pulse())[2]))
    assert re.fullmatch(told, str((await worker.finish_step(1, ["another"])).fault))
    assert worker.background_tasks, "its group is not replaced: the run stops"
    for task in worker.background_tasks:
        task.cancel()


async def test_a_bug_of_turnsmith_stops_the_run(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnsmith.rollout.buffer._WIDTH", None)
    worker = EpisodeWorker("7", plan, settings, engine)
    await worker.generate_sequences(rows("a"))
    while not (fault := (await worker.pulse())[2]):
        await asyncio.sleep(0.01)
    assert isinstance(fault, InternalError)
    assert re.match(r"Episode a-\d: turnsmith failed at turnsmith.rollout.buffer:", str(fault))
    assert "Traceback" in fault.traceback
    assert not (await worker.finish_step(1)).entries, "neither retried nor masked"
    for task in worker.background_tasks:
        task.cancel()


async def test_a_worker_plays_only_its_share_of_an_evaluation(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine
) -> None:
    worker, evaluation = EpisodeWorker("0", plan, settings, engine), EvaluationPlan(episodes=5, limits=Limits(turns=1))
    shares = [await worker.evaluate(SPEC, evaluation, place, 2) for place in (0, 1)]
    assert [len(share) for share in shares] == [3, 2]
    assert {episode.episode_id for share in shares for episode in share} == {
        start.episode_id for start in evaluation.starts()
    }
    assert await worker.pulse() == (worker.context.in_flight.transitions, "no episode is running", None)


def test_a_worker_has_the_parser_of_the_plan_or_the_one_that_tool_format_names(
    queue: Queue, settings: Any, plan: EpisodePlan, engine: ScriptedEngine
) -> None:
    named = EpisodeWorker("0", plan, settings, engine).context.plan.rollout.parser
    assert type(named) is JSONActionParser
    own = ReActActionParser()
    given = replace(plan, rollout=replace(plan.rollout, parser=own))
    assert EpisodeWorker("0", given, settings, engine).context.plan.rollout.parser is own
