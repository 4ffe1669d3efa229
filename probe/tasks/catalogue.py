"""The controlled tasks by name."""

from __future__ import annotations

from collections.abc import Sequence

from probe.errors import UsageError, did_you_mean
from probe.tasks import alignment, arrangement, relation, scale
from probe.tasks.design import ControlledTask

TASKS: dict[str, ControlledTask] = {
    module.TASK.name: module.TASK for module in (scale, alignment, relation, arrangement)
}


def chosen_tasks(names: Sequence[str]) -> tuple[ControlledTask, ...]:
    """The named tasks, each once, in the order of the catalogue; all of them without a name.

    Raises:
        UsageError: with the nearest names, if there is no such task.
    """
    for name in names:
        if name not in TASKS:
            raise UsageError(
                f"unknown task '{name}'.{did_you_mean(name, TASKS)} Tasks: {', '.join(TASKS)}"
            )
    return tuple(task for name, task in TASKS.items() if not names or name in names)
