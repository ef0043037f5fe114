"""Read the arguments that a shell script passes to a program.

The part of a shell that launch scripts have is followed: variables, arrays, words in quotes,
arithmetic, and branches whose condition follows from the file. Nothing is executed. A file may
also have arguments alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from hespas.base.frozen import frozen
from hespas.errors import ConfigError
from hespas.models.shell_words import Token, calculated, condition, expanded, tokens_of

_ARGUMENT = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_UNSET = re.compile(r"\$(\w+|\{[^}]*\}|\(.*\))", re.DOTALL)
_SCRIPT = re.compile(r"\S+\.py\b")
_DECLARES = {"export", "local", "declare", "readonly", "typeset"}
_LOOPS = {"for": "done", "while": "done", "until": "done", "select": "done", "function": "}"}
_ENDS = {"\n", ";", ";;", "&&", "||", "|", "&", ")"}


@frozen
class Argument:
    """A name, and its values as texts."""

    name: str
    values: tuple[str, ...]


def shell_arguments(
    text: str, location: str, *, ignores: Callable[[str], object]
) -> Iterator[Argument]:
    r"""Yield the arguments that a script passes on.

    They are those behind the names of programs (``.py``), and of lines that begin with one; all
    where no line has any. ``ignores`` says which change nothing. Raises `ConfigError` for one that
    the file leaves open: its value, or whether it is given.

    >>> found = shell_arguments("A=(--bf16)\npython x.py ${A[@]} --lr 1", "x.sh", ignores=len)
    >>> [(argument.name, argument.values) for argument in found]
    [('bf16', ()), ('lr', ('1',))]
    """
    script = _Script(tokens=tokens_of(text, location), location=location, ignores=ignores)
    script.statements(frozenset(), runs=True)
    yield from _arguments(script.passed(), script)


@dataclass(slots=True, kw_only=True)
class _Script:
    """A script's tokens, and what ran of them.

    What runs is true, false, or None where the file leaves it open.
    """

    tokens: list[Token]
    location: str
    ignores: Callable[[str], object]
    position: int = 0
    variables: dict[str, str] = field(default_factory=dict[str, str])
    arrays: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    commands: list[list[str]] = field(default_factory=list[list[str]])

    def passed(self) -> list[str]:
        """Return the words behind programs' names, and of lines of arguments."""
        launches = [
            command[index + 1 :]
            for command in self.commands
            for index in range(len(command))
            if _SCRIPT.fullmatch(command[index])
        ]
        lines = [
            command for command in self.commands if command and _ARGUMENT.fullmatch(command[0])
        ]
        found = [*launches, *lines]
        if not any(_has_arguments(words) for words in found):
            strings = [_split([text]) for text in self.variables.values()]
            found = [*self.commands, *self.arrays.values(), *strings]
            found = [words for words in found if _has_arguments(words)]
        return [word for words in found for word in words]

    def statements(self, ends: Collection[str], *, runs: bool | None) -> str:
        """Follow statements up to a word of ``ends``, and return it."""
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            if token.text in ends:
                return token.text
            if token.text not in _ENDS:
                self.position -= 1
                self._statement(runs=runs)
        return ""

    def _statement(self, *, runs: bool | None) -> None:
        """Follow commands that ``&&`` and ``||`` join."""
        status = self._command(runs=runs)
        while self._peek() in {"&&", "||"}:
            is_and = self._next().text == "&&"
            is_met = status if is_and else _not(status)
            found = self._command(runs=_both(runs, is_met))
            status = _both(status, found) if is_and else _either(status, found)

    def _peek(self) -> str:
        return self.tokens[self.position].text if self.position < len(self.tokens) else ""

    def _next(self) -> Token:
        self.position += 1
        at_end = self.position > len(self.tokens)
        return Token(text="", line=0) if at_end else self.tokens[self.position - 1]

    def _command(self, *, runs: bool | None) -> bool | None:
        while self._peek() == "\n":
            self.position += 1
        first = self._peek()
        match first:
            case "!":
                self.position += 1
                return _not(self._command(runs=runs))
            case "if":
                return self._branches(runs=runs)
            case "case":
                return self._cases(runs=runs)
            case "(" | "{":
                self.position += 1
                self.statements({")" if first == "(" else "}"}, runs=runs)
                return True
            case _ if first in _LOOPS:
                return self._loop(_LOOPS[first], runs=runs)
            case _:
                return self._simple(runs=runs)

    def _branches(self, *, runs: bool | None) -> bool:
        before: bool | None = True
        keyword = self._next().text
        while keyword in {"if", "elif", "else"}:
            is_met: bool | None = True
            if keyword != "else":
                is_met = self._condition()
            keyword = self.statements(
                {"elif", "else", "fi"}, runs=_both(runs, _both(before, is_met))
            )
            before = _both(before, _not(is_met))
        return True

    def _condition(self) -> bool | None:
        """Return whether the commands up to ``then`` or ``do`` succeed."""
        status: bool | None = None
        joined = ""
        while self._peek() not in {"then", "do", ""}:
            if self._peek() in _ENDS:
                text = self._next().text
                joined = text if text in {"&&", "||"} else joined
                continue
            found = self._command(runs=False)
            if joined == "&&":
                found = _both(status, found)
            elif joined == "||":
                found = _either(status, found)
            status, joined = found, ""
        self.position += 1
        return status

    def _cases(self, *, runs: bool | None) -> bool:
        self.position += 1
        words = [text for text in self._word() if text]
        while self._peek() in {"\n", "in"}:
            self.position += 1
        before: bool | None = True
        end = ";;"
        while end == ";;" and self._peek():
            patterns: list[str] = []
            while self._peek() not in {")", "esac", ""}:
                token = self._next().text
                if token not in {"|", "(", "\n", ";;"}:
                    patterns += expanded(token, self.variables, self.arrays)
            if self._next().text == "esac":
                break
            is_met = condition(["case", *words[:1], *patterns])
            end = self.statements({";;", "esac"}, runs=_both(runs, _both(before, is_met)))
            before = _both(before, _not(is_met))
        return True

    def _loop(self, end: str, *, runs: bool | None) -> bool:
        """Pass over a loop or function: whether its body runs is open."""
        keyword = self._next().text
        is_met: bool | None = None
        if keyword in {"while", "until"}:
            status = self._condition()
            is_met = status if keyword == "while" else _not(status)
            is_met = None if is_met else is_met
        elif keyword == "function":
            while self._peek() not in {"{", ""}:
                self.position += 1
            self.position += 1
        else:
            while self._peek() not in {"do", ""}:
                self.position += 1
        self.statements({end}, runs=_both(runs, is_met))
        return True

    def _word(self) -> list[str]:
        return expanded(self._next().text, self.variables, self.arrays)

    def _simple(self, *, runs: bool | None) -> bool | None:
        line = self.tokens[self.position].line if self.position < len(self.tokens) else 0
        words: list[str] = []
        while self._peek() and self._peek() not in _ENDS:
            text = self._next().text
            assigned = _ASSIGNED.fullmatch(text)
            if assigned and (not words or words[0] in _DECLARES):
                self._assign(assigned[1], assigned[3], line, adds=bool(assigned[2]), runs=runs)
            elif text == "(" and self._peek() == ")" and len(words) == 1:
                return self._function(runs=runs)
            elif text == "(":
                words.append(self._parenthesis())
            else:
                words += expanded(text, self.variables, self.arrays)
        if not words or words[0] in _DECLARES:
            return True
        if words[0] in {"[", "[[", "test"}:
            return condition(words)
        if words[0].startswith("(("):
            number = calculated(words[0][2:-2], self.variables)
            return None if number is None else bool(number)
        self._run(_split(words), line, runs=runs)
        # Commands succeed, but for those that are asked whether they do.
        return None if runs is False else True

    def _parenthesis(self) -> str:
        """Return a value that is written in parentheses without quotes."""
        texts = ["("]
        while self._peek() not in {")", ""}:
            texts += self._word()
        self.position += 1
        return "".join([*texts, ")"])

    def _function(self, *, runs: bool | None) -> bool:
        """Pass over a function's body, which is not known to run."""
        while self._peek() in {")", "{", "\n"}:
            self.position += 1
        self.statements({"}"}, runs=_both(runs, None))
        return True

    def _assign(self, name: str, text: str, line: int, *, adds: bool, runs: bool | None) -> None:
        if not text and self._peek() == "(":
            self.position += 1
            values: list[str] = []
            while self._peek() not in {")", ""}:
                if self._peek() in _ENDS:
                    self.position += 1
                else:
                    values += self._word()
            self.position += 1
            self._refuse_open(_split(values), line, runs=runs)
            if runs is not False:
                self.arrays[name] = [*(self.arrays.get(name, []) if adds else []), *values]
            return
        value = " ".join(expanded(text, self.variables, self.arrays))
        if runs:
            self.variables[name] = self.variables.get(name, "") + value if adds else value
        elif runs is None and self.variables.get(name) != value:
            # Its value is open: one that is asked for is an error that names it.
            self.variables[name] = f"${name}"

    def _run(self, words: list[str], line: int, *, runs: bool | None) -> None:
        has_script = any(_SCRIPT.fullmatch(word) for word in words)
        if has_script or _ARGUMENT.fullmatch(words[0]):
            self._refuse_open(words, line, runs=runs)
        if runs is not True:
            return
        lines = self.commands
        if lines and _ARGUMENT.fullmatch(lines[-1][0]) and not has_script:
            lines[-1] += words
        else:
            lines.append(words)

    def _refuse_open(self, words: list[str], line: int, *, runs: bool | None) -> None:
        """Refuse arguments of which the file leaves open whether they are given."""
        names = [match[1] for match in map(_ARGUMENT.fullmatch, words) if match]
        counts = [name for name in names if not self.ignores(name.replace("-", "_"))]
        if runs is None and counts:
            raise ConfigError(
                f"whether --{counts[0]} is given depends on what the file does not say",
                location=f"{self.location}:{line}",
                hint="set the condition's variables before it, or take the condition away",
            )


_SEVERAL = re.compile(r"(?:^|\s)--[A-Za-z]|\.py\s")


def _split(words: list[str]) -> list[str]:
    """Return words, with several arguments in one apart."""
    return [
        part.strip("'\"") if is_several else part
        for word in words
        for is_several in [_SEVERAL.search(word) and len(word.split()) > 1]
        for part in (word.split() if is_several else [word.strip()])
    ]


def _has_arguments(words: list[str]) -> bool:
    return any(map(_ARGUMENT.fullmatch, words))


def _both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if None in (one, other) else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    return _not(_both(_not(one), _not(other)))


def _not(status: bool | None) -> bool | None:
    return None if status is None else not status


def _arguments(words: list[str], script: _Script) -> Iterator[Argument]:
    name, values = "", list[str]()
    for word in [*words, "--end"]:
        argument = _ARGUMENT.fullmatch(word)
        if argument is None:
            values.append(word)
            continue
        if name or values:
            _check_set(name, values, script)
        if name:
            yield Argument(name=name, values=tuple(values))
        name = argument[1].replace("-", "_")
        values = [] if argument[2] is None else [argument[2]]


def _check_set(name: str, values: list[str], script: _Script) -> None:
    """Refuse what the file does not set: a value that counts, or further arguments."""
    is_ignored = bool(name) and bool(script.ignores(name))
    for value in values[1 if is_ignored else 0 :]:
        unset = _UNSET.search(value)
        if unset is None:
            continue
        variable = unset[1].strip("{}")
        raise ConfigError(
            f"--{name.replace('_', '-')} is {unset[0]}, which the file does not set"
            if name and value is values[0]
            else f"{unset[0]} stands among the arguments, and the file does not set it",
            location=script.location,
            hint=f"write {variable}=... before it"
            if variable.isidentifier()
            else "write its value",
        )
