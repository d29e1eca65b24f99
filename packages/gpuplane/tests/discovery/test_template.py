"""Templates: what node feature discovery's documentation shows, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.api.nodefeature_functions import FUNCTIONS
from gpuplane.api.nodefeature_template import MAX_BYTES, TemplateError, expand_pairs, parse

DATA: dict[str, Any] = {
    "pci": {
        "device": [
            {"class": "0200", "device": "1234", "vendor": "0fff"},
            {"class": "0302", "device": "20b5", "vendor": "10de"},
        ]
    },
    "system": {"osrelease": [{"Name": "ID", "Value": "ubuntu"}, {"Name": "VERSION_ID", "Value": "22.04"}]},
    "cpu": {"cpuid": [{"Name": "AVX"}]},
    "empty": {"list": []},
}


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("", {}),
        ("a=b\n\n  c=d=e  \n", {"a": "b", "c": "d=e"}),
        (
            "{{ range .pci.device }}vendor-{{ .class }}-{{ .device }}.present=true\n{{ end }}",
            {"vendor-0200-1234.present": "true", "vendor-0302-20b5.present": "true"},
        ),
        (
            "{{ range .system.osrelease }}system-{{ .Name }}={{ .Value }}\n{{ end }}",
            {"system-ID": "ubuntu", "system-VERSION_ID": "22.04"},
        ),
        ("num={{ .pci.device | len }}", {"num": "2"}),
        ("first={{ (.pci.device | first).class | trim | substr 0 63 }}", {"first": "0200"}),
        ("{{- range $i, $d := .pci.device -}}\n x{{ $i }}={{ $d.class }}\n{{ end }}", {"x0": "0200", "x1": "0302"}),
        ("{{ range .empty.list }}x=1{{ else }}none=true{{ end }}", {"none": "true"}),
        ("{{ if gt (len .pci.device) 1 }}many=1{{ else if eq 1 2 }}x=1{{ else }}few=1{{ end }}", {"many": "1"}),
        ("{{ if .empty.list }}x=1{{ else if .pci.device }}y=1{{ end }}", {"y": "1"}),
        ("{{ if and (eq 1 1) (not false) }}x=1{{ end }}", {"x": "1"}),
        ("{{ with index .pci.device 1 }}v={{ .vendor }}{{ end }}", {"v": "10de"}),
        ("{{ with .empty.list }}v=1{{ else }}w=1{{ end }}", {"w": "1"}),
        ("{{ $n := 0 }}{{ range .pci.device }}{{ $n = add $n 1 }}{{ end }}n={{ $n }}", {"n": "2"}),
        ("{{ $.pci.device | len }}=x", {"2": "x"}),
        ("{{/* a comment */}}x=1", {"x": "1"}),
        ('{{ printf "%s-%04d-%q" "a" 5 "b" }}=x', {'a-0005-"b"': "x"}),
        ("x={{ `raw` | upper }}", {"x": "RAW"}),
        ('x={{ .cpu.cpuid | first | toString | replace "map" "" }}', {"x": "[Name:AVX]"}),
        ('x={{ list "b" "a" "b" | uniq | sortAlpha | join "-" }}', {"x": "a-b"}),
        ('x={{ "" | default "none" }}', {"x": "none"}),
        ("x={{ ternary 1 2 true }}", {"x": "1"}),
        ("x={{ div 7 2 }}{{ mod 7 2 }}{{ sub 1 3 }}{{ mul 2 3 }}", {"x": "31-26"}),
        ('x={{ regexReplaceAll "^0*" "0012" "" }}', {"x": "12"}),
        ("x={{ 1.5 }}", {"x": "1.5"}),
        ('x={{ "a\\"b" }}', {"x": 'a"b'}),
    ],
)
def test_what_templates_make(source: str, made: dict[str, str]) -> None:
    assert expand_pairs(parse(source), DATA) == made


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("a=b\n{{ range .x }}", 2, "no end"),
        ("{{ end }}", 1, "without a beginning"),
        ("{{ else }}", 1, "without a beginning"),
        ("\n\n{{ env `HOME` }}", 3, "no function env"),
        ("{{ now }}", 1, "no function now"),
        ('{{ define "x" }}{{ end }}', 1, "not supported"),
        ("{{ .a", 1, "never closed"),
        ("{{ (.a }}", 1, "parentheses"),
        ("{{ .a) }}", 1, "parentheses"),
        ("{{ }}", 1, "missing"),
        ("{{ .a | }}", 1, "missing"),
        ("{{ 1 | 2 }}", 1, "no function"),
        ("{{ .a .b }}", 1, "no function"),
        ("{{ ? }}", 1, "not understood"),
        ('{{ "open }}', 1, "not understood"),
        ("{{ range $a, $b, $c := .x }}{{ end }}", 1, "before :="),
        ("{{ if .a }}{{ else range .b }}{{ end }}", 1, "does not continue"),
        ("{{ if .a }}" * 60, 1, "nested"),
        ("x" * (MAX_BYTES + 1), 0, "longer"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(source: str, line: int, why: str) -> None:
    with pytest.raises(TemplateError, match=why) as told:
        parse(source)
    assert line in (0, told.value.line)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x={{ .nope }}", "no nope"),
        ("x={{ (index .pci.device 0).nope }}", "no nope"),
        ("x={{ index .pci.device 9 }}", "no entry 9"),
        ("x={{ $y }}", "no variable"),
        ("{{ $y = 1 }}", "no variable"),
        ("x={{ len 5 }}", "cannot take"),
        ("x={{ lt `a` 1 }}", "cannot be compared"),
        ("x={{ div 1 0 }}", "div"),
        ("x={{ repeat 100000000 `abc` }}", "too many"),
        ("{{ range 5.5 }}{{ end }}", "needs a list"),
        ("just text", "not name=value"),
    ],
)
def test_what_cannot_be_expanded_is_an_error(source: str, why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        expand_pairs(parse(source), DATA)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}"), max_size=20)


@given(TEXTS)
def test_text_without_actions_is_itself(text: str) -> None:
    assert parse(text).expand({}) == text


@given(st.text(alphabet='{}.$|()-:=," \nabcdefgilnortwx0129`', max_size=60))
def test_no_source_is_anything_but_a_template_or_an_error(source: str) -> None:
    with suppress(TemplateError):
        parse(source).expand(DATA)


@given(st.lists(st.dictionaries(st.sampled_from(["vendor", "class"]), st.text("0123abc", min_size=1), min_size=2)))
def test_a_range_makes_one_piece_for_each_entry(devices: list[dict[str, str]]) -> None:
    source = "{{ range . }}{{ .class }}_{{ .vendor }};{{ end }}"
    assert parse(source).expand(devices) == "".join(f"{one['class']}_{one['vendor']};" for one in devices)


ARGUMENTS = st.one_of(
    st.text(max_size=5), st.integers(-5, 70000), st.booleans(), st.none(), st.lists(st.text(max_size=2))
)


@given(st.sampled_from(sorted(FUNCTIONS)), st.lists(ARGUMENTS, max_size=4))
def test_no_function_fails_otherwise_than_as_an_error_of_the_template(name: str, arguments: list[Any]) -> None:
    scope = {f"a{index}": value for index, value in enumerate(arguments)}
    source = "{{ " + " ".join((name, *(f".a{index}" for index in range(len(arguments))))) + " }}"
    with suppress(TemplateError):
        assert len(parse(source).expand(scope)) < 1 << 21


TWICE = "{{ $x := %s }}{{ range until 60 }}{{ $x = %s }}{{ end }}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ range until 65536 }}{{ range until 65536 }}{{ end }}{{ end }}", "steps"),
        ("{{ range 65536 }}{{ range 65536 }}{{ end }}{{ end }}", "steps"),
        ("{{ range 65536 }}{{ if lt (len $.cpu.cpuid) 0 }}{{ end }}{{ end }}", "steps"),
        ('{{ range 1000 }}{{ repeat 65536 "x" }}{{ end }}', "too much text"),
        (f"{{{{ range 1000 }}}}{'x' * 60_000}{{{{ end }}}}", "too much text"),
        (TWICE % ('"a"', "cat $x $x"), "too much text"),
        (TWICE % ("list 1", "list $x $x") + "{{ $x }}", "too much text"),
        (TWICE % ("list 1", "concat $x $x"), "too much text"),
        (TWICE % ("3", "mul $x $x"), "64 bits"),
        ('{{ repeat 65536 "x" | replace "" (repeat 65536 "y") }}', "too much text"),
        ('{{ until 65536 | join (repeat 65536 "y") }}', "too much text"),
    ],
)
def test_an_expansion_has_a_limit(source: str, says: str) -> None:
    # The master evaluates the rules of all nodes in one process: two nested ranges kept it busy for minutes.
    with pytest.raises(TemplateError, match=says):
        parse(source).expand(DATA)


def test_a_template_may_make_a_line_for_each_of_a_thousand_devices() -> None:
    devices = [{"class": "0302", "vendor": f"{number:04x}"} for number in range(1000)]
    source = (
        "{{ range .devices }}{{ if eq .class `0302` }}v-{{ .vendor | trim }}={{ len $.devices }}\n{{ end }}{{ end }}"
    )
    assert len(expand_pairs(parse(source), {"devices": devices})) == 1000


def test_uniq_of_a_long_list_keeps_the_first_of_each() -> None:
    assert parse("{{ list 2 `a` 1 2 `1` `a` | uniq | join `,` }}").expand(DATA) == "2,a,1,1"
    assert parse("{{ until 30000 | uniq | len }}").expand(DATA) == "30000"
