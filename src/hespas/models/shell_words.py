"""Read words and conditions of a shell script, without executing it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from hespas.base.frozen import frozen
from hespas.errors import ConfigError

_SPACE = re.compile(r"(?:[ \t\r]|\\\r?\n|#[^\n]*)+")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(?s:.*?)\n\s*\2(?=\n|$)")
_REDIRECTED = re.compile(r"(?:\d+|&)?(?:>>|>&|<&|>|<)[ \t]*&?[^\s;&|()]*")
_OPERATOR = re.compile(r"\n|;;|;|&&|\|\||\||&|\((?!\()|\)")
_WORD = re.compile(
    r"""(?:\(\((?:[^()]|\([^()]*\))*\)\)
    |(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"
    |\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}
    |[^\s'"\\;&|()<>`$]|\$)+)""",
    re.DOTALL | re.VERBOSE,
)  # fmt: skip
_PIECE = re.compile(
    r"(?P<braces>\$\{[^{}]*\})|'(?P<literal>[^']*)'|\"(?P<quoted>(?:\\.|[^\"\\])*)\"", re.DOTALL
)
_ARRAY = re.compile(r"\"?\$\{(\w+)\[[@*]\]\}\"?")
_VARIABLE = re.compile(
    r"\$\(\((?P<arithmetic>(?:[^()]|\([^()]*\))*)\)\)"
    r"|\$\{(?P<braced>\w+|[@*#])(?P<rest>\[[@*]\]|:?[-=+](?P<other>(?:[^{}]|\$\{[^{}]*\})*))?\}"
    r"|\$(?P<name>\w+|[@*#])"
)


@frozen
class Token:
    """A word or an operator, and its line."""

    text: str
    line: int


def tokens_of(text: str, location: str) -> list[Token]:
    """Return the words and operators of a script; raises `ConfigError` for open quotes."""
    tokens, position = list[Token](), 0
    while position < len(text):
        space = _SPACE.match(text, position)
        if space:
            position = space.end()
            continue
        skipped = _HEREDOC.match(text, position) or _REDIRECTED.match(text, position)
        matched = skipped or _OPERATOR.match(text, position) or _WORD.match(text, position)
        line = text.count("\n", 0, position) + 1
        if matched is None:
            raise ConfigError(
                f"this is no line of a shell: {text[position : position + 20].splitlines()[0]!r}",
                location=f"{location}:{line}",
                hint="close the quotes",
            )
        if not skipped:
            tokens.append(Token(text=matched[0], line=line))
        position = matched.end()
    return list(_apart(tokens))


_JOINED = {"-a": "&&", "-o": "||", "&&": "&&", "||": "||"}


def _apart(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield tokens in which the terms of one test are tests that are joined."""
    opened = ""
    for token in tokens:
        if token.text in {"[", "[["}:
            opened = token.text
        elif token.text in {"]", "]]"}:
            opened = ""
        if opened and token.text in _JOINED:
            closed = {"[": "]", "[[": "]]"}[opened]
            for text in (closed, _JOINED[token.text], opened):
                yield Token(text=text, line=token.line)
        else:
            yield token


def expanded(
    word: str, variables: Mapping[str, str], arrays: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the words that a word becomes, with what is set in it.

    What is not set stays as it is written; ``$@``, arguments of the script, is nothing.

    >>> expanded('"$A-${B:-2}"', {"A": "1"}, {}), expanded('"${X[@]}"', {}, {"X": ["a", "b"]})
    (['1-2'], ['a', 'b'])
    """
    array = _ARRAY.fullmatch(word)
    if array and (array[1] in arrays or array[1] not in variables):
        return list(arrays.get(array[1], [word.strip('"')]))
    parts, position = list[str](), 0
    for piece in _PIECE.finditer(word):
        parts.append(_resolved(word[position : piece.start()], variables, arrays))
        literal = piece["literal"]
        quoted = piece["braces"] or piece["quoted"] or ""
        quoted = quoted.replace("\\\n", " ").replace('\\"', '"')
        parts.append(_resolved(quoted, variables, arrays) if literal is None else literal)
        position = piece.end()
    parts.append(_resolved(word[position:], variables, arrays))
    text = "".join(parts)
    if text == word and '"' not in word and "$" not in word:
        return [text]
    # An unquoted variable may have several words, or none.
    return text.split() if word.startswith("$") else [text]


def _resolved(text: str, variables: Mapping[str, str], arrays: Mapping[str, Sequence[str]]) -> str:
    def value(match: re.Match[str]) -> str:
        name, suffix = match["braced"] or match["name"], match["rest"] or ""
        if match["arithmetic"] is not None:
            number = calculated(_resolved(match["arithmetic"], variables, arrays), variables)
            return match[0] if number is None else str(number)
        if name in _OF_THE_SCRIPT:
            return _OF_THE_SCRIPT[name]
        if suffix.startswith("["):
            return " ".join(arrays.get(name, [match[0]]))
        other = _resolved((match["other"] or "").strip("\"'"), variables, arrays)
        if suffix[:2].endswith("+") or suffix.startswith("+"):
            return other if variables.get(name) else ""
        if name in variables and (variables[name] or not suffix.startswith(":")):
            return variables[name]
        return other if suffix else match[0]

    return _VARIABLE.sub(value, text)


_OF_THE_SCRIPT = {"@": "", "*": "", "#": "0"}
"""What a script reads of its own arguments: hespas passes none."""

_BINARY: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: int.__floordiv__,
    ast.Mod: operator.mod,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def calculated(text: str, variables: Mapping[str, str]) -> int | None:
    """Return the value of a shell's arithmetic, None for one that is not known.

    >>> calculated("H * 7 / 2", {"H": "4096"}), calculated("2 * $X", {})
    (14336, None)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return _value_of(tree, variables)


def _value_of(tree: ast.expr, variables: Mapping[str, str]) -> int | None:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            text = variables.get(name, "")
            return int(text) if re.fullmatch(r"-?\d+", text) else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value_of(operand, variables)
            return None if value is None else -value
        case (
            ast.BinOp(left=left, op=kind, right=right)
            | ast.Compare(left=left, ops=[kind], comparators=[right])
        ):
            one, other = _value_of(left, variables), _value_of(right, variables)
            is_none = one is None or other is None or type(kind) not in _BINARY
            if is_none or (other == 0 and isinstance(kind, ast.Div | ast.Mod)):
                return None
            return int(_BINARY[type(kind)](one or 0, other or 0))
        case _:
            return None


_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def condition(words: Sequence[str]) -> bool | None:
    """Return whether a test holds, None where the file doesn't say.

    >>> condition(["[", "2", "-gt", "1", "]"]), condition(["[[", "$X", "==", "fp8", "]]"])
    (True, None)
    """
    match words:
        case ["case", word, *patterns]:
            is_met = any(fnmatchcase(word, pattern) for pattern in patterns)
            return None if "$" in word else is_met
        case [("[" | "[[" | "test"), *terms]:
            return _holds([term for term in terms if term not in {"]", "]]"}])
        case _:
            return None


def _holds(terms: Sequence[str]) -> bool | None:
    status: bool | None = None
    if any("$" in term for term in terms):
        return None
    match terms:
        case ["!", *others]:
            status = _holds(others)
            status = None if status is None else not status
        case ["-z", *text]:
            status = not any(text)
        case ["-n", *text]:
            status = any(map(bool, text))
        case [one, ("=" | "==" | "!=") as name, other]:
            status = fnmatchcase(one, other) is (name != "!=")
        case [one, name, other] if name in _NUMBERS and one.isdigit() and other.isdigit():
            status = _NUMBERS[name](int(one), int(other))
        case [text] if not text.startswith("-"):
            status = bool(text)
        case _:
            status = None
    return status
