"""The tasks and the rubric."""

from collections.abc import Iterator

import verifiers.v1 as vf

from offline_arl_toy_shop.tools import PRICES, ShopToolset


class ShopData(vf.TaskData):
    """A question and its answer."""

    answer: int


class ShopTask(vf.Task[ShopData]):
    """Three quarters for the answer, one for having looked it up."""

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        if "BOOM" in trace.last_reply:
            raise ValueError("a rubric that fails")
        return float(str(self.data.answer) in trace.last_reply)

    @vf.reward(weight=0.25)
    async def looked_up(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages) > 0)

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class ShopConfig(vf.TasksetConfig):
    """Where the tools run."""

    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class ShopTaskset(vf.Taskset[ShopTask, ShopConfig]):
    """Fifteen tasks, and tools that they share."""

    @classmethod
    def toolsets(cls, config: ShopConfig) -> list[vf.Toolset]:
        return [ShopToolset(config.tools)]

    def load(self) -> Iterator[ShopTask]:
        print("what environments print must not get in between")  # noqa: T201
        for item, price in PRICES.items():
            for count in range(1, 6):
                prompt = f"What do {count} of {item} cost?"
                system = "Look prices up."
                data = ShopData(id=f"{item}-{count}", prompt=prompt, system_prompt=system, answer=price * count)
                yield ShopTask(data, self.config.task)
