"""Answers to queries on the terminal, in a pipe, as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from service.commands.connection import hint
from service.commands.question_options import Question

if TYPE_CHECKING:
    from service.client.reply import Reply
    from service.errors import CallError


class AnswerPrinter:
    """Writes answers to stdout and what is to be said about them to stderr.

    Args:
        question: What is asked.

    Attributes:
        num_failed: Queries that got an error.
    """

    def __init__(self, question: Question) -> None:
        self._as_json_lines = question.as_json_lines
        self._min_mass: float | None = question.options["min_mass"]
        self._on_terminal = sys.stdout.isatty()
        self.num_failed = 0

    def show(self, query: str, reply: Reply | CallError) -> None:
        """Print what became of one query."""
        from service.commands import render
        from service.errors import CallError

        if isinstance(reply, CallError):
            self.num_failed += 1
            click.echo(f"Error: {query!r}: {reply}{hint(reply)}", err=True)
        if self._as_json_lines:
            click.echo(render.as_json(query, reply))
        elif isinstance(reply, CallError):
            return
        elif self._on_terminal:
            from rich.console import Console

            Console().print(render.as_table(query, reply, self._min_mass))
            self._explain(reply, on_stderr=False)
            return
        elif reply.result.no_match:
            why = render.abstention(reply, self._min_mass)
            click.echo(f"no match: {query!r}{why and ': '}{why}", err=True)
        else:
            for line in render.as_lines(query, reply):
                click.echo(line)
        self._explain(reply, on_stderr=True)

    def _explain(self, reply: Reply | CallError, on_stderr: bool) -> None:
        """Show why, where it was asked for; lines and JSON stay as they are."""
        from service.errors import CallError

        if self._as_json_lines or isinstance(reply, CallError) or reply.result.explanation is None:
            return
        from rich.console import Console

        from service.commands.render_explanation import as_tree

        Console(stderr=on_stderr).print(as_tree(reply.result.explanation))
