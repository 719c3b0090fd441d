"""From bytes to plain data, whatever the bytes are."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dradriver.api import text
from dradriver.api.text import TextError, parse


@pytest.fixture(params=[yaml.SafeLoader, yaml.CSafeLoader], ids=["python", "c"], autouse=True)
def _parser(request, monkeypatch):
    monkeypatch.setattr(text, "_PARSER", request.param)


def value(written):
    found = parse(written.encode())
    assert found.problems == ()
    return found.value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("0x233010DE", "0x233010DE"),
        ("1g.10gb", "1g.10gb"),
        ("1e3", "1e3"),
        ("1.5", "1.5"),
        ("1_000", "1_000"),
        ("0o17", "0o17"),
        ("017", "017"),
        ("0000:41:00.0", "0000:41:00.0"),
        ("41:00", "41:00"),
        ("2026-11-30", "2026-11-30"),
        ("<<", "<<"),
        ("7", 7),
        ("-7", -7),
        ("0", 0),
        ("9" * 19, "9" * 19),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'off'", "off"),
        ("'7'", "7"),
        ('"true"', "true"),
        ("''", ""),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_words_mean_what_they_say(written, meant):
    found = value(f"key: {written}")["key"]
    assert (found, type(found)) == (meant, type(meant))


def test_keys_are_texts_as_they_are_written():
    assert value("off: 1\n7: 2\ntrue: 3\n'x y': 4\n~: 5") == {"off": 1, "7": 2, "true": 3, "x y": 4, "~": 5}


def test_json_is_read_as_json_says():
    document = {"configs": {"a": {"gpus": [{"filter": {"indices": [0, 1]}, "mig": "off"}], "x": None, "y": [True, {}]}}}
    assert value(json.dumps(document)) == document
    assert value(json.dumps(document, indent=2)) == document


def test_a_mark_at_the_beginning_is_no_content():
    assert parse(b"\xef\xbb\xbfa: 1").value == {"a": 1}
    assert value("---\na: 1\n...\n") == {"a": 1}


def test_anchors_are_understood():
    assert value("a: &ids [x, y]\nb: *ids\n") == {"a": ["x", "y"], "b": ["x", "y"]}


def test_a_key_that_stands_there_twice_is_told_with_its_path_and_line_and_the_first_counts():
    found = parse(b"a:\n  - b: 1\n    c: 2\n    b: 3\na: 4\n")
    assert found.value == {"a": [{"b": 1, "c": 2}]}
    assert [str(problem) for problem in found.problems] == [
        "a[0].b: stands there twice, the second time at line 4",
        "a: stands there twice, the second time at line 5",
    ]


def test_a_key_that_stands_there_twice_in_json():
    assert [problem.path for problem in parse(b'{"a": {"b": 1, "b": 2}}').problems] == [("a", "b")]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it is empty"),
        (b"# nothing but a remark\n", "it is empty"),
        (b"---\n", "it is empty"),
        (b"a: 1\n---\nb: 2\n", "a second document begins; only one is allowed"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"a: \x07", "it is not YAML: it has control characters"),
        (b"a: [1,", "it is not YAML: line "),
        (b"a: {b: 1", "it is not YAML: line "),
        (b"a: 1\n b: 2", "it is not YAML: line 2, column 3: mapping values are not allowed"),
        (b"a:\n\t- 1", "it is not YAML: line 2, column 1"),
        (b"a: !!python/name:os.system 1", "line 1, column 4: tags such as"),
        (b"a: !!int 1", "line 1, column 4: tags such as"),
        (b"!x a: 1", "line 1, column 1"),
        (b"? [a, b]\n: 1", "line 1, column 3: a key must be a text"),
        (b"a: *b", "line 1, column 4: there is no anchor &b before"),
        (b"a: &a [*a]", "line 1, column 8: there is no anchor &a before"),
        (b"[" * 22 + b"]" * 22, "line 1, column 22: it is nested deeper than 20 levels"),
        (b'{"a":' * 400, "it is nested deeper than 20 levels"),
        (b"- 1\n" * 20_001, "it has more than 20000 values"),
        (b"x" * ((1 << 20) + 1), "it is larger than 1 MiB"),
    ],
)
def test_what_is_no_document_is_told_in_one_line(data, told):
    with pytest.raises(TextError) as caught:
        parse(data)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_cannot_make_a_small_text_large():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(TextError, match="more than 20000 values"):
        parse("\n".join(lines).encode())


@pytest.mark.parametrize("opening", [b"[", b"{", b"- ", b"? ", b"[{a: ", b"!"])
def test_depth_costs_nothing(opening):
    with pytest.raises(TextError):
        parse(opening * ((1 << 20) // len(opening)))


fragments = st.sampled_from(
    [
        "a: ",
        "b:",
        "\n",
        "\n  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&x ",
        "*x",
        "!!str ",
        "'",
        '"',
        "|",
        ">",
        "#",
        "off",
        "1",
    ]
)


@given(st.binary(max_size=200) | st.lists(fragments, max_size=30).map(lambda parts: "".join(parts).encode()))
def test_no_bytes_make_it_fail_otherwise(data):
    try:
        found = parse(data)
    except TextError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either is fine)
    else:
        assert found.value is not None


# Without line breaks, which YAML folds, and what it does not allow.
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\ufeff\ufffe\uffff"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(texts, plain, min_size=1, max_size=4))
def test_whatever_is_dumped_is_read_back(document):
    written = yaml.safe_dump(document, allow_unicode=True, sort_keys=False)
    # Dumped for YAML 1.1, where more words are quoted than need be.
    assert value(written) == document
