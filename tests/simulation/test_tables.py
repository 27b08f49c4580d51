"""The one table: aligned in a text, safe in HTML."""

from simulation.tables import Table


def test_columns_are_aligned() -> None:
    text = Table("t", ("way", "s"), [("a", 1.0), ("longer", 12_345)]).text()
    assert text.splitlines()[2:] == [
        "way          s",
        "a            1",
        "longer  12,345",
    ]


def test_a_table_is_safe_in_html() -> None:
    page = Table("a < b", ("", "n"), [("<script>", "1")]).html()
    assert "<script>" not in page
    assert "a &lt; b" in page
    assert page.count("<tr>") == 2


def test_notes_stand_below_the_table() -> None:
    notes = ("one", " ".join(["two"] * 30))
    table = Table("t", ("", "n"), [("a", 1)], notes=notes)
    text = table.text().splitlines()
    assert text[4:6] == ["", "- one"]
    assert text[6].startswith("- two two") and text[7].startswith("  two two")
    assert max(map(len, text)) <= 88
    assert table.markdown().endswith(f"| a | 1 |\n\n- one\n- {notes[1]}")
    assert table.html().count("<li>") == 2
