"""Keys of `gpuplane top`, and the rows that they choose."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cli.top.rows import HolderRow, Matter, TopRow
from gpuplane.cli.top.view import KeyAction, RowKind, TopView, explained_pod, pressed, shown_rows

ROWS = [
    TopRow(name="a/0", model="T4", busy=90.0, held=50, holders=(HolderRow("ml/tune", 50, "50%"),)),
    TopRow(name="a/1", model="T4", busy=0.0, matter=Matter.IDLE, idle_seconds=400),
    TopRow(name="b/0", model="H100", busy=3.0, matter=Matter.LOST),
    TopRow(name="b/1", model="H100", busy=None, matter=Matter.IDLE, idle_seconds=9000),
]
KEYS = [
    "up",
    "down",
    "pageup",
    "pagedown",
    "home",
    "end",
    "enter",
    "escape",
    "backspace",
    *"gnpsSea/qjkxZ1 :",
    "\x1b[Z",
]


def names(view: TopView) -> list[str]:
    return [row.name for row in shown_rows(ROWS, view)]


def after(*keys: str, view: TopView | None = None) -> TopView:
    found = view or TopView()
    for key in keys:
        found, _ = pressed(found, key, shown_rows(ROWS, found), 10)
    return found


def test_those_that_need_a_person_are_first_and_healthy_ones_hidden() -> None:
    assert names(TopView()) == ["b/0", "b/1", "a/1"]
    assert names(after("a")) == ["b/0", "b/1", "a/1", "a/0"]


def test_a_filter_finds_name_model_state_and_pods() -> None:
    assert names(after(*"/h100")) == ["b/0", "b/1"]
    assert names(after(*"/idle t4", "enter")) == ["a/1"]
    assert names(after(*"/ml/tune", "enter")) == ["a/0"]
    assert after(*"/lostx", "backspace", "enter").filter == "lost"
    assert after(*"/lost", "escape").filter == ""
    assert after(*"/quit").filter == "quit", "while one types, letters are no commands"


def test_orders_follow_each_other() -> None:
    assert names(after("s")) == ["b/1", "a/1", "b/0", "a/0"]
    assert after("s", "S").sort == "matters" and after("S").sort == "name"


def test_a_row_is_chosen_and_stays_within_the_rows() -> None:
    assert after("down", "down", "down", "down", "down").at == 2
    assert after("down", "up", "up").at == 0
    assert after("end").at == 2 and after("end", "home").at == 0


def test_a_node_leads_to_its_gpus() -> None:
    nodes = [TopRow(name="a"), TopRow(name="b")]
    view, _ = pressed(TopView(RowKind.NODES, at=1), "enter", nodes, 10)
    assert (view.what, view.filter) == (RowKind.GPUS, "b/")


def test_the_pod_to_explain_is_the_chosen_one_else_the_one_that_waits_longest() -> None:
    assert explained_pod(TopView(), ROWS, ["ml/late"]) == "ml/late"
    assert explained_pod(TopView(), ROWS, []) == "ml/tune"
    assert explained_pod(TopView(at=1), ROWS, []) == ""
    assert explained_pod(TopView(RowKind.PODS, at=1), [TopRow(name="ml/x"), TopRow(name="ml/y")], ["ml/late"]) == "ml/y"


def test_an_explanation_is_left_by_any_key() -> None:
    assert pressed(TopView(text=("why",)), "x", ROWS, 10) == (TopView(), KeyAction.NONE)
    assert pressed(TopView(text=("why",)), "q", ROWS, 10)[1] is KeyAction.QUIT


@given(st.lists(st.sampled_from(KEYS), max_size=30))
def test_no_keys_lead_out_of_the_rows(keys: list[str]) -> None:
    view = after(*keys)
    assert 0 <= view.at <= max(0, len(ROWS) - 1)
    shown_rows(ROWS, view)
