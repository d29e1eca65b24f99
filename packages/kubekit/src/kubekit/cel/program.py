"""A syntax tree to a callable: each node becomes a closure over a dict of variables.

Errors are values until they are needed, as the specification has it: `||`, `&&`, `all` and `exists` give an answer
when the other side decides alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kubekit.cel.functions import FUNCTIONS, METHODS, NAMESPACES, TYPES
from kubekit.cel.syntax import (
    Call,
    CelSyntaxError,
    Ident,
    Index,
    ListLiteral,
    Literal,
    MapLiteral,
    Message,
    Node,
    Select,
    located,
    parse,
)
from kubekit.cel.values import ABSENT, CelError, OptionalValue, equal, some

Env = dict[str, Any]
Run = Callable[[Env], Any]

# How Kubernetes spells property names that are no identifiers.
_ESCAPES = (("__underscores__", "__"), ("__dot__", "."), ("__dash__", "-"), ("__slash__", "/"))


class CelProgram:
    """A compiled expression; immutable, to be called with its variables. Raises CelSyntaxError at construction."""

    def __init__(self, source: str, variables: Iterable[str]) -> None:
        self.source = source
        known = set(variables)
        try:
            tree = parse(source)
            self.names = frozenset(_check(tree, known, source))
            self._run = _compile(tree)
        except RecursionError:
            raise CelSyntaxError("expression nested too deeply") from None

    def __call__(self, variables: Env) -> Any:
        """The value. Raises CelError when evaluation fails."""
        try:
            return self._run(variables)
        except RecursionError:
            raise CelError("expression nested too deeply") from None


def _check(node: Node, known: set[str], source: str) -> set[str]:
    """The variables that a tree reads. Raises CelSyntaxError for a name or a function that nothing provides."""
    used: set[str] = set()

    def visit(node: Node, bound: frozenset[str]) -> None:
        match node:
            case Ident(name):
                if name in bound:
                    return
                if name not in known and name not in TYPES:
                    raise located(source, name, f"undeclared reference to '{name}' (in container '')")
                used.add(name)
            case Select(operand, _, _):
                visit(operand, bound)
            case Index(operand, index, _):
                visit(operand, bound)
                visit(index, bound)
            case ListLiteral(items):
                for _, item in items:
                    visit(item, bound)
            case MapLiteral(entries):
                for _, key, value in entries:
                    visit(key, bound)
                    visit(value, bound)
            case Message(name, fields):
                visit(Ident(name.partition(".")[0]), bound)
                visit(fields, bound)
            case Call():
                visit_call(node, bound)
            case Literal():
                pass

    def visit_call(call: Call, bound: frozenset[str]) -> None:
        qualified = _qualified(call)
        if qualified == "cel.bind" and len(call.args) == 3:
            name = _variable(call.args[0])
            visit(call.args[1], bound)
            visit(call.args[2], bound | {name})
            return
        if call.target is not None and qualified not in NAMESPACES:
            visit(call.target, bound)
        elif call.target is not None:
            for arg in call.args:
                visit(arg, bound)
            return
        if (parts := macro_parts(call)) is not None:
            names, bodies = parts
            for body in bodies:
                visit(body, bound | set(names))
            return
        table = FUNCTIONS if call.target is None else METHODS
        if call.function not in table and call.function not in _OPERATORS and call.function != "has":
            raise located(source, call.function, f"undeclared reference to '{call.function}' (in container '')")
        for arg in call.args:
            visit(arg, bound)

    visit(node, frozenset())
    return used - TYPES.keys()


def _qualified(call: Call) -> str:
    return f"{call.target.name}.{call.function}" if isinstance(call.target, Ident) else ""


def _variable(node: Node) -> str:
    if not isinstance(node, Ident):
        raise CelSyntaxError("argument must be a simple name")
    return node.name


def _compile(node: Node) -> Run:
    match node:
        case Literal(value):
            return lambda env: value
        case Ident(name):
            return _ident(name)
        case Select(operand, field, optional):
            return _select(_compile(operand), field, optional)
        case Index(operand, index, optional):
            return _index(_compile(operand), _compile(index), optional)
        case ListLiteral(items):
            return _list([(optional, _compile(item)) for optional, item in items])
        case MapLiteral(entries):
            return _map([(optional, _compile(key), _compile(value)) for optional, key, value in entries])
        case Message(_, fields):
            return _compile(fields)
        case Call():
            return _call(node)


def _ident(name: str) -> Run:
    def run(env: Env) -> Any:
        if name in env:
            return env[name]
        if name in TYPES:
            return TYPES[name]
        raise CelError(f"no such attribute(s): {name}")

    return run


def _lookup(value: Any, key: Any) -> OptionalValue:
    """A field, entry or item as an optional. Raises CelError where the kind of value has none."""
    if isinstance(value, OptionalValue):
        return _lookup(value.value, key) if value.present else ABSENT
    if isinstance(value, Mapping):
        if key in value:
            return some(value[key])
        if isinstance(key, str) and "__" in key:
            plain = unescape(key)
            if plain in value:
                return some(value[plain])
        return ABSENT
    if isinstance(value, list):
        if isinstance(key, bool) or not isinstance(key, (int, float)) or key != int(key):
            raise CelError(f"unsupported index type '{type(key).__name__}' in list")
        return some(value[int(key)]) if 0 <= key < len(value) else ABSENT
    raise CelError("no such overload")


def unescape(key: str) -> str:
    """The property that an identifier stands for, `example__dot__com` for `example.com`."""
    for escaped, plain in _ESCAPES:
        key = key.replace(escaped, plain)
    return key[2:-2] if key.startswith("__") and key.endswith("__") and len(key) > 4 else key


def _select(operand: Run, field: str, optional: bool) -> Run:
    def run(env: Env) -> Any:
        value = operand(env)
        if type(value) is dict and field in value and not optional:
            return value[field]
        found = _lookup(value, field)
        if optional or isinstance(value, OptionalValue):
            return found
        if not found.present:
            raise CelError(f"no such key: {field}")
        return found.value

    return run


def _index(operand: Run, index: Run, optional: bool) -> Run:
    def run(env: Env) -> Any:
        value, key = operand(env), index(env)
        found = _lookup(value, key)
        if optional or isinstance(value, OptionalValue):
            return found
        if not found.present:
            raise CelError(f"index out of bounds: {key}" if isinstance(value, list) else f"no such key: {key}")
        return found.value

    return run


def _list(items: list[tuple[bool, Run]]) -> Run:
    def run(env: Env) -> Any:
        made = []
        for optional, item in items:
            value = item(env)
            if not optional:
                made.append(value)
            elif value.present:
                made.append(value.value)
        return made

    return run


def _map(entries: list[tuple[bool, Run, Run]]) -> Run:
    def run(env: Env) -> Any:
        made = {}
        for optional, key, item in entries:
            value = item(env)
            if not optional:
                made[key(env)] = value
            elif value.present:
                made[key(env)] = value.value
        return made

    return run


def _call(call: Call) -> Run:
    if call.function in _OPERATORS and call.target is None:
        return _OPERATORS[call.function](*call.args)
    if call.function == "has" and call.target is None:
        return _has(call)
    qualified = _qualified(call)
    if qualified == "cel.bind":
        return _bind(_variable(call.args[0]), _compile(call.args[1]), _compile(call.args[2]))
    if qualified in NAMESPACES:
        return _apply(NAMESPACES[qualified], [_compile(arg) for arg in call.args])
    if call.target is not None and (parts := macro_parts(call)) is not None:
        names, bodies = parts
        return _MACROS[call.function](_compile(call.target), names, [_compile(body) for body in bodies])
    if call.target is None:
        return _apply(FUNCTIONS[call.function], [_compile(arg) for arg in call.args])
    return _apply(METHODS[call.function], [_compile(call.target), *(_compile(arg) for arg in call.args)])


def _apply(function: Callable[..., Any], args: list[Run]) -> Run:
    def run(env: Env) -> Any:
        try:
            return function(*[arg(env) for arg in args])
        except (TypeError, AttributeError):  # another number or other types of arguments than it takes
            raise CelError("no such overload") from None
        except (ValueError, OverflowError, ZeroDivisionError) as problem:
            raise CelError(str(problem)) from None

    return run


def _has(call: Call) -> Run:
    if len(call.args) != 1 or not isinstance(call.args[0], Select):
        raise CelSyntaxError("invalid argument to has() macro")
    operand, field = _compile(call.args[0].operand), call.args[0].field
    # NB: a null field counts as absent: Kubernetes drops nulls of fields that are not nullable before CEL sees them.
    return lambda env: (found := _lookup(operand(env), field)).present and found.value is not None


def _bind(name: str, value: Run, body: Run) -> Run:
    return lambda env: body({**env, name: value(env)})


# -- operators that do not evaluate everything -------------------------------------------------------------------
def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise CelError("no such overload")


def _shortcut(decides: bool) -> Callable[[Node, Node], Run]:
    def make(left_node: Node, right_node: Node) -> Run:
        left, right = _compile(left_node), _compile(right_node)

        def run(env: Env) -> bool:
            try:
                if _truth(left(env)) is decides:
                    return decides
            except CelError:
                if _truth(right(env)) is decides:
                    return decides
                raise
            return _truth(right(env))

        return run

    return make


def _conditional(condition: Node, yes: Node, no: Node) -> Run:
    test, then, otherwise = _compile(condition), _compile(yes), _compile(no)
    return lambda env: then(env) if _truth(test(env)) else otherwise(env)


def _not(operand: Node) -> Run:
    run = _compile(operand)
    return lambda env: not _truth(run(env))


def _equality(wanted: bool) -> Callable[[Node, Node], Run]:
    def make(left: Node, right: Node) -> Run:
        one, two = _compile(left), _compile(right)
        return lambda env: equal(one(env), two(env)) is wanted

    return make


def _eager(name: str) -> Callable[..., Run]:
    return lambda *args: _apply(FUNCTIONS[name], [_compile(arg) for arg in args])


_OPERATORS: dict[str, Callable[..., Run]] = {
    "_||_": _shortcut(True),
    "_&&_": _shortcut(False),
    "_?_:_": _conditional,
    "!_": _not,
    "_==_": _equality(True),
    "_!=_": _equality(False),
    **{name: _eager(name) for name in ("_<_", "_<=_", "_>_", "_>=_", "_in_", "_+_", "_-_", "_*_", "_/_", "_%_", "-_")},
}


# -- macros: one or two variables over a list or map ---------------------------------------------------------------
def _is_macro(call: Call) -> bool:
    return len(call.args) >= 2 and isinstance(call.args[0], Ident)


def macro_parts(call: Call) -> tuple[list[str], list[Node]] | None:
    """The variables and bodies of a macro over a list or map; None for every other call."""
    if call.target is None or call.function not in _MACROS or not _is_macro(call):
        return None
    return _split_macro(call)


def _split_macro(call: Call) -> tuple[list[str], list[Node]]:
    """The variables and the bodies: `map` alone takes one variable and two bodies."""
    two = len(call.args) >= 3 and call.function not in ("map", "optMap", "optFlatMap")
    count = 2 if two else 1
    return [_variable(arg) for arg in call.args[:count]], list(call.args[count:])


def _each(value: Any, names: list[str], env: Env) -> Iterable[Env]:
    inner = dict(env)
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[Any, Any]] = value.items()
        single = 0
    elif isinstance(value, list):
        pairs = enumerate(value)
        single = 1
    else:
        raise CelError("no such overload")
    for pair in pairs:
        if len(names) == 2:
            inner[names[0]], inner[names[1]] = pair
        else:
            inner[names[0]] = pair[single]
        yield inner


def _quantifier(decides: bool) -> Callable[[Run, list[str], list[Run]], Run]:
    """`exists` is decided by a true, `all` by a false; errors count only when nothing decided."""

    def make(target: Run, names: list[str], bodies: list[Run]) -> Run:
        (body,) = bodies

        def run(env: Env) -> bool:
            failure: CelError | None = None
            for inner in _each(target(env), names, env):
                try:
                    if _truth(body(inner)) is decides:
                        return decides
                except CelError as problem:
                    failure = problem
            if failure is not None:
                raise failure
            return not decides

        return run

    return make


def _exists_one(target: Run, names: list[str], bodies: list[Run]) -> Run:
    (body,) = bodies
    return lambda env: sum(_truth(body(inner)) for inner in _each(target(env), names, env)) == 1


def _filter(target: Run, names: list[str], bodies: list[Run]) -> Run:
    (body,) = bodies

    def run(env: Env) -> Any:
        return [inner[names[0]] for inner in _each(target(env), names, env) if _truth(body(inner))]

    return run


def _map_macro(target: Run, names: list[str], bodies: list[Run]) -> Run:
    *test, body = bodies

    def run(env: Env) -> Any:
        return [body(inner) for inner in _each(target(env), names, env) if not test or _truth(test[0](inner))]

    return run


def _transform_map(target: Run, names: list[str], bodies: list[Run]) -> Run:
    *test, body = bodies

    def run(env: Env) -> Any:
        each = _each(target(env), names, env)
        return {inner[names[0]]: body(inner) for inner in each if not test or _truth(test[0](inner))}

    return run


def _optional_map(flat: bool) -> Callable[[Run, list[str], list[Run]], Run]:
    def make(target: Run, names: list[str], bodies: list[Run]) -> Run:
        (body,) = bodies

        def run(env: Env) -> Any:
            value = target(env)
            if not isinstance(value, OptionalValue):
                raise CelError("no such overload")
            if not value.present:
                return ABSENT
            result = body({**env, names[0]: value.value})
            return result if flat else some(result)

        return run

    return make


_MACROS: dict[str, Callable[[Run, list[str], list[Run]], Run]] = {
    "all": _quantifier(False),
    "exists": _quantifier(True),
    "exists_one": _exists_one,
    "existsOne": _exists_one,
    "filter": _filter,
    "map": _map_macro,
    "transformList": _map_macro,
    "transformMap": _transform_map,
    "optMap": _optional_map(False),
    "optFlatMap": _optional_map(True),
}
