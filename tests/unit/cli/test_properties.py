"""Files of options: the syntax of Java's Properties."""

from __future__ import annotations

import pickle

import pytest

from coopconsume.cli.properties import Property, read_properties
from coopconsume.errors import OptionsFileError


@pytest.fixture
def read(tmp_path):
    """Writes a file and reads it; returns its pairs."""

    def pairs(content):
        file = tmp_path / "client.properties"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [(one.name, one.value) for one in read_properties(str(file))]

    return pairs


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nb:2\nc 3\nd\t=\t4", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]),
        ("a\f5", [("a", "5")]),
        ("a = = 1\nb = : 2\nc  x=y", [("a", "= 1"), ("b", ": 2"), ("c", "x=y")]),
        ("# a=1\n  ! b=2\n\n \t\f\nc=3 # no comment", [("c", "3 # no comment")]),
        ("# a comment ends here \\\nb=2", [("b", "2")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1,\\\n   2,\\\r\n\t3\nb=4", [("a", "1,2,3"), ("b", "4")]),
        ("a=1\\\n# 2\\\n! 3", [("a", "1# 2! 3")]),
        ("a=1\\\n\nb=2", [("a", "1"), ("b", "2")]),
        ("\\\n  a=1\\\n\\\n2", [("a", "12")]),
        ("\\\n# a=1\nb=2\n\\", [("b", "2")]),
        ("a=1\\\\\nb=2\\\\\\\n3", [("a", "1\\"), ("b", "2\\3")]),
        ("a=1\\", [("a", "1")]),
        ("a\\ b\\=c\\:d=1", [("a b=c:d", "1")]),
        ('\\#a=\\q\\t\\"x\\n.', [("#a", 'q\t"x\n.')]),
        ("a=caf\\u00e9 \\uD83D\\uDE00 \\u005c", [("a", "café 😀 \\")]),
        ("a=café 😀", [("a", "café 😀")]),
        ("a\nb=\nc =", [("a", ""), ("b", ""), ("c", "")]),
        ("a= 1 \t", [("a", "1")]),
        ("a=x\x0by\u2028z\x85", [("a", "x\x0by\u2028z\x85")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("\ufeffa=1", [("a", "1")]),
        ("", []),
    ],
)  # fmt: skip
def test_a_file_is_read_as_java_reads_it(read, text, found):
    """Comments, separators, continuations and escapes; the ends of values are cut as Kafka does."""
    assert read(text) == found


def test_a_property_knows_the_line_where_it_begins(tmp_path):
    """Also behind comments and continued lines."""
    file = tmp_path / "client.properties"
    file.write_text("# one\n\na=1,\\\n  2\n\nb=3\n")
    assert read_properties(str(file)) == [Property(3, "a", "1,2"), Property(6, "b", "3")]


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        (b"a=1\nb=\\u12", 2, "four hexadecimal digits"),
        (b"a=1\n\nb\\uD83D=2", 3, "other half"),
        ("a=1\r\nb=é".encode("latin-1"), 2, "UTF-8"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(read, tmp_path, content, line, said):
    """With the file and what to do; its value, which may be a secret, is not shown."""
    with pytest.raises(OptionsFileError, match=said) as error:
        read(content)
    assert str(error.value).startswith(f"{tmp_path}/client.properties: line {line}: ")
    assert pickle.loads(pickle.dumps(error.value)).problems == error.value.problems


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """Without a line."""
    with pytest.raises(OptionsFileError, match=f"^{tmp_path}: it cannot be read: Is a directory"):
        read_properties(str(tmp_path))
