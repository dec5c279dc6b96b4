"""Login modules: read as Kafka's Java client reads them, and never shown in an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopconsume.kafka.security.jaas import Login, parse

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ('username="u" password="p"', {"username": "u", "password": "p"}),
        ("username=u.v-w_1$ password='p w'", {"username": "u.v-w_1$", "password": "p w"}),
        ('a = "x;y=z"\n\tb="\'"', {"a": "x;y=z", "b": "'"}),
        (r'a="\"\\\n\t\101\60" b="\q"', {"a": '"\\\n\tA0', "b": "q"}),
        ('/* why */ a="1" // and so on\n', {"a": "1"}),
        ('"user_a b"="x"', {"user_a b": "x"}),
        ("a=über", {"a": "über"}),
        ('a="1" a="2"', {"a": "2"}),
        ("", {}),
    ],
)
def test_options_are_read_as_java_does(options, read):
    """Quotes, escapes, comments and white space mean what they mean to the Java client."""
    login = parse(f" {MODULE}\n  REQUIRED {options};\n")
    assert login.module == MODULE
    assert login.simple_name == "ScramLoginModule"
    assert login.options == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" // nothing\n", "empty"),
        ("= x", "class name"),
        (MODULE, "required"),
        (f'{MODULE} username="u" password="hush";', "required"),
        (f'{MODULE} required username="u" password="hush"', "semicolon"),
        (f'{MODULE} required username="u" password="hush', "open quote"),
        (f"{MODULE} required password=hush!;", "needs quotes"),
        (f"{MODULE} required password=1hush;", "needs quotes"),
        (f"{MODULE} required password=hush hush;", "no equals sign"),
        (f"{MODULE} required password= ;", "no value"),
        (f'{MODULE} required ="hush";', "name is missing"),
        (f'{MODULE} required a="hush"; {MODULE} required;', "after the semicolon"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(text, message):
    """Java would refuse these, too; the reason names no part of the text."""
    with pytest.raises(ValueError, match=message) as error:
        parse(text)
    assert "hush" not in str(error.value)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=4))
def test_what_is_written_is_read_again(options):
    """Names and values survive, whatever is in them."""
    login = Login(MODULE, options)
    assert parse(str(login)) == login


def test_a_login_does_not_show_its_options():
    """Neither a login nor its options show by their representation what is in them."""
    login = parse(f'{MODULE} required username="u" password="hush";')
    assert "hush" not in repr(login) + repr(login.options) + repr(list(login.options.values()))
    assert "hush" in str(login), "for Spark it is written out"
