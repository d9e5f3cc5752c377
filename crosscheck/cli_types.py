"""Types of options that several commands have."""

import math
from typing import Any

import click

__all__ = ["SECONDS"]


class _Seconds(click.FloatRange):
    """A number of seconds that can be waited for."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


SECONDS = _Seconds(0, 1e6, min_open=True)
