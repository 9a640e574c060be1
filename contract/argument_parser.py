"""SuggestingParser: an argparse parser whose errors name the nearest command or option."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from darkroom.contract.nearest import nearest_name

_WRONG_CHOICE = re.compile(r"invalid choice: '(?P<given>.*)' \(choose from (?P<known>.*)\)$", re.DOTALL)
_UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (?P<given>--[^\s=]+)")


class SuggestingParser(argparse.ArgumentParser):
    """Parser of a command, and of its sub-commands: argparse makes those of the same class."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error with the nearest name; exit with 2."""
        super().error(message + self._hint(message))

    def _hint(self, message: str) -> str:
        choice, option = _WRONG_CHOICE.search(message), _UNKNOWN_OPTION.search(message)
        if choice is not None:
            nearest = nearest_name(choice["given"], re.findall(r"[\w.-]+", choice["known"]))
        elif option is not None:
            nearest = nearest_name(option["given"], re.findall(r"--[\w-]+", self.format_help()))
        else:
            nearest = None
        return f"; did you mean {nearest!r}?" if nearest else ""
