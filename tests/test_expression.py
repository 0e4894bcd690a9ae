"""Conditions of `where:`: they agree with Python where they overlap, and can do nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import RequestError
from runner.expression import MAX_BITS, MAX_LENGTH, parse

NAMES = ("block_M", "block_K", "threads", "M")
VALUES = {"block_M": 128, "block_K": 64, "threads": 256, "M": 131072}

numbers = st.one_of(
    st.integers(0, 200).map(str), st.sampled_from(NAMES), st.floats(0, 100, allow_nan=False).map(lambda x: f"{x:.3f}")
)
arithmetic = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.integers(0, 3)).map(lambda t: f"({t[0]} ** {t[1]})"),
        inner.map(lambda x: f"(-{x})"),
        inner.map(lambda x: f"abs({x})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=5,
)
comparisons = st.one_of(
    st.tuples(arithmetic, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic).map(" ".join),
    st.tuples(arithmetic, st.sampled_from(["<", "<="]), arithmetic, st.sampled_from(["<", "!="]), arithmetic).map(" ".join),
    st.tuples(arithmetic, st.sampled_from(["in", "not in"]), st.lists(numbers, max_size=4)).map(
        lambda t: f"{t[0]} {t[1]} [{', '.join(t[2])}]"
    ),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda x: f"(not {x})"),
    ),
    max_leaves=3,
)


@given(conditions.filter(lambda text: len(text) <= MAX_LENGTH))
def test_agrees_with_python(text: str) -> None:
    condition = parse(text, NAMES)
    try:
        expected = eval(text, {"__builtins__": {}, "min": min, "max": max, "abs": abs}, VALUES)
    except ArithmeticError:
        with pytest.raises(ArithmeticError):
            condition.evaluate(VALUES)
        return
    try:
        assert condition.evaluate(VALUES) is expected
    except ArithmeticError as error:  # the one way in which it may know less than Python
        assert "too large" in str(error)


@given(st.text(max_size=60))
def test_no_text_does_more_than_be_refused_or_give_a_value(text: str) -> None:
    try:
        condition = parse(text, NAMES)
    except RequestError as error:
        assert str(error)
        return
    assert condition.unmet(VALUES) is None or condition.text in str(condition.unmet(VALUES))


class Trap:
    """A value whose attributes, items and calls must not be touched."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"attribute {name} was read")

    def __call__(self, *_: object) -> object:
        raise AssertionError("it was called")

    def __getitem__(self, _: object) -> object:
        raise AssertionError("an item was read")


code = st.sampled_from(
    [
        *("M.__class__", "M()", "M[0]", "(lambda: 1)()", "[x for x in M]", "f'{M}'", "abs.__self__", "().__class__"),
        *("min(M, key=M)", "min(*M)", "(M := 1)", "M if M else M", "{M: 1}", "{M}", "*M", "await M"),
        *("~M", "M | M", "M << 2", "M @ M", "1j", "b'x'", "..."),
    ]
)
around = st.sampled_from(["{} == 0", "M == 0 and {}", "not {}", "1 + {} > 2", "1 < {} < 2", "M in (1, {})", "abs({}) > 1", "{}"])


@given(code, around)
def test_code_is_refused_before_it_is_looked_at(piece: str, whole: str) -> None:
    with pytest.raises(RequestError):
        parse(whole.format(piece), {"M": Trap()})


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("block_m % 2 == 0", "did you mean 'block_M'?"),
        ("__import__('os').system('true')", "is not allowed"),
        ("print(M) == 1", "is not allowed"),
        ("block_K % 16", "compare it, as in 'block_K % 16 == 0'"),
        ("M > 1 and block_K % 16", "compare it"),
        ("threads is None", "use == or !="),
        ("M in threads", "`in` takes a list"),
        ("M ==", "is not a condition"),
        ("", "is not a condition"),
        ("M == 1\nimport os", "is not a condition"),
        ("min(M) == 1", "min and max two or more"),
        ("M == " + "1" * MAX_LENGTH, f"at most {MAX_LENGTH}"),
        ("(" * 240 + "M" + ")" * 240 + " == 1", "use + - *"),
        ("M == 0\0", "use + - *"),
    ],
)
def test_a_refusal_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text, NAMES)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("threads % 32 == 0", "threads is null, not a number"),
        ("threads > 1", "threads is null, not a number"),
        ("max(threads, 1) == 1", "threads is null, not a number"),
        ("'ab' * 3 == 'ababab'", "'ab' is 'ab', not a number"),
        ("'%s' % 1 == '1'", "not a number"),
        ("M // (M - M) == 0", "zero"),
        ("M ** M > 1", "a power of 131072"),
        ("2 ** 0.5 > 1", "a power of 0.5"),
        ("((M ** 60) ** 60) ** 60 > 1", "a power that is too large"),
    ],
)
def test_what_cannot_be_decided_is_dropped_with_its_cause(text: str, cause: str) -> None:
    reason = parse(text, NAMES).unmet({**VALUES, "threads": None})
    assert reason is not None
    assert reason.startswith(f"where: {text} cannot be decided: ")
    assert cause in reason


def test_products_are_bounded_as_powers_are() -> None:
    factor = "M ** 60"
    assert MAX_BITS < 2 * 60 * 17
    assert "too large" in str(parse(f"{factor} * {factor} > 1", NAMES).unmet(VALUES))


def test_null_can_be_asked_for() -> None:
    for text in ("threads == null", "threads == None", "threads == null or threads % 32 == 0", "not threads"):
        assert parse(text, NAMES).unmet({**VALUES, "threads": None}) is None


def test_a_false_condition_is_quoted() -> None:
    assert parse(" block_K % 48 == 0 ", NAMES).unmet(VALUES) == "where: block_K % 48 == 0 is false"


def test_a_tower_of_powers_is_given_up() -> None:
    tower = "9"
    while len(tower) < MAX_LENGTH - 20:
        tower = f"({tower})**64"
    assert "too large" in str(parse(f"{tower} > 1", NAMES).unmet(VALUES))
