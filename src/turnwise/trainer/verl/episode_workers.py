"""The processes that run episodes: the task runner's own, or as many Ray actors as the settings ask for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import ray
from tensordict import TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from turnwise.inference.chat import Chat
from turnwise.records.episodes import write_episodes
from turnwise.tools.formats import parser_for
from turnwise.trainer.step_report import EpisodeReport, report_of
from turnwise.trainer.verl.agent_loop import EpisodeRoom, open_room
from turnwise.trainer.verl.episode_plan import EpisodePlan

_VerlWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class EpisodeWorker(_VerlWorker):
    """verl's agent-loop worker, which also keeps what its episodes recorded until a step is over."""

    def __init__(self, part: str, plan: EpisodePlan, config: Any, engine: Any) -> None:
        super().__init__(config, engine, None, [])
        self.part = part
        self.room = EpisodeRoom(plan, Chat(self.tokenizer), parser_for(plan.tool_format, self.tokenizer), [])
        open_room(self.room)

    async def finish_step(self, step: int) -> EpisodeReport:
        """Write the episodes that ended since the last call to the run folder, and say how they went."""
        finished, self.room.finished = self.room.finished, []
        if finished:
            await asyncio.to_thread(write_episodes, self.room.plan.run_dir, step, finished, part=self.part)
        return report_of(finished)


class EpisodeWorkers:
    """What verl's trainer sends its prompts to; the face verl calls an agent-loop manager."""

    def __init__(self, plan: EpisodePlan, config: Any, engine: Any, num_actors: int) -> None:
        self._local: EpisodeWorker | None = None
        self._remote: list[Any] = []
        if num_actors == 0:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True).start()
            self._local = EpisodeWorker("0", plan, config, engine)
            return
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        for index in range(num_actors):
            node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(nodes[index % len(nodes)], soft=True)
            actor = ray.remote(EpisodeWorker).options(num_cpus=0, scheduling_strategy=node)
            self._remote.append(actor.remote(str(index), plan, config, engine))

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the episodes of a batch of groups; they end in the replay buffer."""
        if self._local:
            asyncio.run_coroutine_threadsafe(self._local.generate_sequences(prompts), self._loop).result()
            return
        chunks = prompts.chunk(len(self._remote))
        ray.get([worker.generate_sequences.remote(chunk) for worker, chunk in zip(self._remote, chunks, strict=False)])

    def finish_step(self, step: int) -> EpisodeReport:
        """Record what ended in this step, in every worker, and add up how it went."""
        if self._local:
            return asyncio.run_coroutine_threadsafe(self._local.finish_step(step), self._loop).result()
        return sum(ray.get([worker.finish_step.remote(step) for worker in self._remote]), EpisodeReport())
