"""CEL as Kubernetes rules use it: values, macros that shrug off errors, Kubernetes' own types, mistakes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubekit.cel import CelError, CelProgram, CelSyntaxError
from kubekit.cel.result_types import result_type


def evaluate(source: str, **variables: Any) -> Any:
    return CelProgram(source, variables)(variables)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 2 * 3 - 7 / 2", 4),
        ("-7 / 2 == -3 && -7 % 2 == -1", True),
        ("1 == 1.0 && 1 < 1.5 && 2u > 1", True),
        ("true == 1", False),
        ("'a' + \"b\" + r'\\d' + '\\u0041'", "ab\\dA"),
        ("'x' in ['x'] && 'k' in {'k': 1} && !('z' in ['x'])", True),
        ("[1, 2, 3].filter(x, x > 1).map(y, y * 2)", [4, 6]),
        ("[1, 2].map(x, x > 1, x * 10)", [20]),
        ("{'a': 1}.all(k, v, k == 'a' && v == 1)", True),
        ("{'a': 1, 'b': 2}.exists_one(k, k == 'b')", True),
        ("{'a': 1}.transformMap(k, v, v + 1)", {"a": 2}),
        ("cel.bind(x, 20, x + x / 10)", 22),
        ("size('abc') == 3 && [1].size() == 1", True),
        ("'a,b,c'.split(',', 2) == ['a', 'b,c'] && ['a', 'b'].join('-') == 'a-b'", True),
        ("'hello'.substring(1, 3) + 'ABC'.lowerAscii() + 'x'.replace('x', 'y')", "elabcy"),
        ("'%s is %d, %.1f'.format(['a', 1, 2.0])", "a is 1, 2.0"),
        ("'abc123'.find('[0-9]+') + string('a1b2'.findAll('[0-9]').size())", "1232"),
        ("[1, 2, 2].isSorted() && [3, 1].sum() == 4 && [3, 1].max() == 3 && [1, 2].indexOf(2) == 1", True),
        ("quantity('1Gi').isGreaterThan(quantity('1000M')) && quantity('1500m').add(1) == quantity('2.5')", True),
        ("isQuantity('1Gi') && !isQuantity('1Zi')", True),
        ("duration('1h30m').getMinutes() == 90 && duration('1h') > duration('59m')", True),
        ("timestamp('2026-01-02T03:04:05Z').getDayOfMonth()", 1),
        ("url('https://a.b:8443/c?d=e').getPort() + url('https://a.b/c').getHost()", "8443a.b"),
        ("cidr('10.0.0.0/8').containsIP('10.1.2.3') && ip('::1').isLoopback()", True),
        ("semver('1.10.0').compareTo(semver('1.9.0')) == 1 && isSemver('1.2.3') && !isSemver('1.2')", True),
        ("sets.contains([1, 2], [2]) && !sets.intersects([1], [2])", True),
        ("format.dns1123Label().validate('a-b').hasValue()", False),
        ("type(1) == int && type('') == string", True),
        ("optional.none().orValue(3) + optional.of(4).value()", 7),
    ],
)
def test_evaluates(source: str, value: object) -> None:
    assert evaluate(source) == value


def test_absent_fields_are_asked_for_with_has_or_optionals() -> None:
    spec = {"self": {"a": {"b": 1}, "null": None}}
    assert evaluate("has(self.a.b) && !has(self.a.c) && !has(self.null)", **spec)
    assert evaluate("self.?a.?c.orValue(9) + self.a[?'b'].orValue(0)", **spec) == 10
    with pytest.raises(CelError, match="no such key: c"):
        evaluate("self.a.c == 1", **spec)


def test_properties_that_are_no_identifiers_are_escaped() -> None:
    spec = {"nvidia.com/gpu": 1, "in": 2, "a-b": 3}
    assert evaluate("self.nvidia__dot__com__slash__gpu + self.__in__ + self.a__dash__b", self=spec) == 6


def test_one_side_that_decides_is_enough() -> None:
    assert evaluate("self.missing == 1 || true", self={}) is True
    assert evaluate("self.missing == 1 && false", self={}) is False
    assert evaluate("[1, 2].exists(x, x == 2 || self.missing)", self={}) is True
    with pytest.raises(CelError, match="no such key"):
        evaluate("self.missing == 1 || false", self={})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 +", "Syntax error"),
        ("nosuch == 1", "undeclared reference to 'nosuch'"),
        ("nosuch(1)", "undeclared reference to 'nosuch'"),
        ("'a'.nosuch()", "undeclared reference to 'nosuch'"),
        ("[1, 2", "missing"),
        ("has(self)", "has"),
        ("(" * 300 + "1" + ")" * 300, "too deeply"),
    ],
)
def test_mistakes_are_found_when_compiled(source: str, message: str) -> None:
    with pytest.raises(CelSyntaxError, match=message):
        CelProgram(source, ["self"])


@pytest.mark.parametrize(
    "source", ["1 + 'a'", "1 / 0", "[1][5]", "'a' < 1", "9223372036854775807 + 1", "1 + 1.0", "int('x')", "'a'.size(1)"]
)
def test_what_cannot_be_computed_is_an_error(source: str) -> None:
    with pytest.raises(CelError):
        evaluate(source)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(_json, _json)
def test_equality_of_json_is_that_of_python_but_for_booleans(one: object, two: object) -> None:
    assert evaluate("a == a && b == b", a=one, b=two)
    assert evaluate("a == b", a=one, b=two) == (not evaluate("a != b", a=one, b=two))


@given(st.text(max_size=60))
def test_any_text_compiles_or_is_a_syntax_error(source: str) -> None:
    with contextlib.suppress(CelSyntaxError, CelError):
        CelProgram(source, ["self"])({"self": {}})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("1", "int"),
        ("'a'", "string"),
        ("1 < 2", "bool"),
        ("[1].size()", "int"),
        ("device.driver", "string"),
        ("device.nosuch", ""),
        ("true ? 1 : 2", "int"),
        ("true ? 1 : 'a'", ""),
        ("[1].exists(x, x > 0)", "bool"),
        ("object", ""),
    ],
)
def test_the_type_of_a_result_as_far_as_it_is_known(source, found):
    assert result_type(source, {"device": {"driver": "string"}}) == found
